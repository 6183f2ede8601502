"""Measuring one point: static batches until their time is known well enough."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from servefit.errors import ServefitError
from servefit.offline.engine import BatchRun, Engine, OutOfTimeError
from servefit.offline.steps import Step, time_by_phase
from servefit.profiling.lengths import Length
from servefit.profiling.measure import Limits, PointFailedError
from servefit.profiling.plan import Point
from servefit.profiling.window import interval

#: A point is not ended by its precision before so many batches.
MIN_BATCHES = 3
#: The batch before the measured ones has answers of at most this length.
WARMUP_OUTPUT_TOKENS = 8


@dataclass(frozen=True)
class Size:
    """A static batch: requests, and the exact lengths of each in tokens."""

    batch: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, point: Point) -> Size:
        """The batch that a point asks for.

        Raises:
            ServefitError: the point is an open loop, or its lengths are not fixed.
        """
        if point.concurrency is None:
            raise ServefitError(f"{point.label}: offline profiling runs static batches: --batch N")
        lengths = [
            Length(text).fixed if text else None
            for text in (point.input_length, point.output_length)
        ]
        if lengths[0] is None or lengths[1] is None:
            raise ServefitError(
                f"{point.label}: all requests of a static batch have the same lengths: give "
                "--input-tokens N and --output-tokens N"
            )
        return cls(point.concurrency, lengths[0], lengths[1])

    @property
    def request_tokens(self) -> int:
        """Input and output tokens of one request."""
        return self.input_tokens + self.output_tokens

    @property
    def tokens(self) -> int:
        """Input and output tokens of the batch."""
        return self.batch * self.request_tokens


@dataclass(frozen=True)
class OfflineMeasurement:
    """A point as measured: its batches, without the warm-up.

    Attributes:
        size: what was run.
        batches: every batch but the warm-up.
        warmup_s: time of the batch before them.
        stopped_by: ``precision`` or ``time``.
    """

    size: Size
    batches: tuple[BatchRun, ...]
    warmup_s: float
    stopped_by: str

    @property
    def steps(self) -> Iterator[Step]:
        """Every step of every batch."""
        return itertools.chain.from_iterable(run.steps for run in self.batches)


def measure(
    engine: Engine,
    point: Point,
    limits: Limits,
    *,
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> OfflineMeasurement:
    """Run a point's batch, first once to warm up, until its E2E is known.

    It ends when the 95 % interval of the mean E2E is within ``limits.rel_err``, not before
    `MIN_BATCHES` and ``limits.min_window_s``; or when another batch would exceed
    ``limits.max_point_s``.

    Raises:
        PointFailedError: not even one batch fits the time; the engine could not hold the batch in
            its KV cache; answers are not of the length asked for.
        ServefitError: the point is no static batch.
    """
    size = Size.of(point)
    draw = random.Random(seed)
    begun_s = time.perf_counter()
    give_up_s = begun_s + limits.max_point_s

    def run(output_tokens: int) -> BatchRun:
        result = engine.run(
            size.batch,
            size.input_tokens,
            output_tokens,
            seed=draw.getrandbits(32),
            give_up_s=give_up_s,
        )
        _verify(result, size, output_tokens, engine.settings)
        return result

    warmup_s, stopped_by = 0.0, "time"
    batches: list[BatchRun] = []
    with suppress(OutOfTimeError):
        report("warming up")
        run(min(size.output_tokens, WARMUP_OUTPUT_TOKENS))
        warmup_s = time.perf_counter() - begun_s
        while not batches or time.perf_counter() + max(b.e2e_s for b in batches) < give_up_s:
            batches.append(run(size.output_tokens))
            error = relative_error(batches)
            report(f"{len(batches)} batches, E2E {batches[-1].e2e_s:.3g} s" + _plus_minus(error))
            measured_s = sum(b.e2e_s for b in batches)
            enough = len(batches) >= MIN_BATCHES and measured_s >= limits.min_window_s
            if enough and error <= limits.rel_err:
                stopped_by = "precision"
                break
    if not batches:
        limit = f"{limits.max_point_s:g} s"
        raise PointFailedError("time", f"no batch ended in {limit}: raise --max-point-time", [])
    return OfflineMeasurement(size, tuple(batches), warmup_s, stopped_by)


def usable(batches: Sequence[BatchRun]) -> Sequence[BatchRun]:
    """The batches that a row is made of: those that did not wait for a core, if there are enough.

    Something else on the machine can only make a batch slower.
    """
    alone = [run for run in batches if run.undisturbed]
    return alone if len(alone) >= MIN_BATCHES else batches


def relative_error(batches: Sequence[BatchRun]) -> float:
    """Half width of the 95 % interval of the mean E2E, relative; infinite below 2 batches."""
    used = usable(batches)
    if len(used) < 2:
        return math.inf
    return interval(np.array([run.e2e_s for run in used])).half_width


def measured_columns(m: OfflineMeasurement) -> dict[str, Any]:
    """The results of a point in the columns of the table of runs.

    The `usable` batches run one after the other: rates are theirs over the sum of their E2E. E2E is
    that of the whole batch; where all prompts were computed in one step it is that of each request,
    and TPOT = (E2E - TTFT)/(output tokens - 1). Where they took several, prompts have waited and
    requests did not run abreast: TPOT and the TTFT in service are ``None``, and a flag says so.
    Extra columns: the batch's time in steps of each phase.
    """
    size, used = m.size, usable(m.batches)
    n, steps = len(used), [step for run in used for step in run.steps]
    duration_s = sum(run.e2e_s for run in used)
    rate = n * size.batch / duration_s
    e2e_s, ttft_s = duration_s / n, fmean(run.ttft_s for run in used)
    phases = time_by_phase(steps)
    stepping_s = sum(phases.values())
    live = sum(step.shape.live_tokens * step.time_s for step in steps)
    prompt_steps = max(sum(s.shape.prefill_requests > 0 for s in run.steps) for run in used)
    disturbed = sum(not run.undisturbed for run in used)
    error = relative_error(m.batches)
    abreast = prompt_steps == 1
    flags = ["time_up"] if m.stopped_by == "time" else []
    if not abreast:
        flags.append(f"prompts_took_{prompt_steps}_steps: they waited, TPOT is unknown")
    if disturbed:
        flags.append(f"disturbed: {disturbed} of {n} batches waited for a core")
    return {
        "input_tokens": size.input_tokens,
        "output_tokens": size.output_tokens,
        "batch": size.batch,
        "mean_batch": float(size.batch) if abreast else None,
        "peak_batch": max(run.peak_requests for run in used),
        "num_requests": n * size.batch,
        "completed": n * size.batch,
        "duration_s": duration_s,
        "warmup_s": m.warmup_s,
        "stopped_by": m.stopped_by,
        "requests_per_s": rate,
        "total_tokens_per_s": rate * size.request_tokens,
        "output_tokens_per_s": rate * size.output_tokens,
        "total_tokens_per_s_rel_err": error if math.isfinite(error) else None,
        "e2e_mean_s_rel_err": error if math.isfinite(error) else None,
        "e2e_mean_s": e2e_s,
        "e2e_with_queue_mean_s": e2e_s,
        "ttft_mean_s": ttft_s if abreast else None,
        "ttft_with_queue_mean_s": ttft_s,
        "queue_time_mean_s": 0.0 if abreast else None,
        "tpot_mean_s": (e2e_s - ttft_s) / (size.output_tokens - 1)
        if size.output_tokens > 1 and abreast
        else None,
        "mean_live_tokens": live / stepping_s,
        "preemptions": 0,
        "prefill_time_s": phases["context"] / n,
        "decode_time_s": phases["decode"] / n,
        "mixed_time_s": phases["mixed"] / n,
        "between_steps_s": e2e_s - stepping_s / n,
        "batches": n,
        "left_out_batches": len(m.batches) - n,
        "waited_share": fmean(run.waited_share for run in used),
        "flags": "; ".join(flags) or None,
    }


def _verify(run: BatchRun, size: Size, output_tokens: int, settings: Mapping[str, Any]) -> None:
    """Raise `PointFailedError` unless the engine did what it was asked for."""
    if set(run.output_tokens) != {output_tokens}:
        raise PointFailedError(
            "output_length",
            f"answers of {sorted(set(run.output_tokens))} tokens where {output_tokens} were asked",
            [],
        )
    if run.preemptions or (run.peak_requests < size.batch and output_tokens > 1):
        raise PointFailedError(
            "not_static",
            f"the engine ran at most {run.peak_requests} of {size.batch} requests at once, with "
            f"{run.preemptions} preempted: its KV cache of {settings.get('kv_capacity_tokens')} "
            f"tokens, --max-num-seqs or --max-num-batched-tokens is too small for {size.batch} x "
            f"{size.request_tokens} tokens",
            [],
        )


def _plus_minus(error: float) -> str:
    return f" ±{error:.1%}" if math.isfinite(error) else ""
