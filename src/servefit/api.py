"""What `import servefit` offers: the path runs -> fit -> predict, on names and plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from servefit import laws
from servefit.calibration import Calibration, Reading, load_calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware, get_hardware
from servefit.laws import Law, Prediction
from servefit.laws.step.running import batch_limits, flatten
from servefit.models import ModelShape, get_model
from servefit.points import Points, Serving
from servefit.workload import Workload

if TYPE_CHECKING:
    # Tables need polars, which what starts from a calibration does without: imported when used.
    from servefit.calibration import BatchFrom
    from servefit.observations import ContextFrom
    from servefit.runs.table import RunTable

_T = TypeVar("_T")
_Named = TypeVar("_Named", ModelShape, Hardware)

#: In place of a calibration file, ``prior:LAW`` is the law before any run was measured.
PRIOR = "prior"


def read_runs(paths: str | Path | Sequence[str | Path]) -> RunTable:
    """Read and check tables of runs (CSV, JSON Lines, Parquet; ``-`` is standard input).

    Rows that contradict themselves are left out; the table's ``problems`` name each with its
    reason.

    Raises:
        ServefitError: a file cannot be read or is no table of runs.
    """
    from servefit.runs.check import check
    from servefit.runs.table import read_tables

    return check(read_tables([paths] if isinstance(paths, (str, Path)) else list(paths)))


def fit(
    runs: RunTable,
    law: str | Law | None = None,
    *,
    batch_from: BatchFrom = "mean_batch",
    context_from: ContextFrom = "lengths",
    gpu: str | Hardware | None = None,
) -> Calibration:
    """Fit a law to a table of runs, or of engine steps.

    Rows that lack what the law needs are left out; the calibration's ``notes`` say which.

    Args:
        runs: as read by `read_runs`.
        law: its name, or a law object; `default_law` otherwise.
        batch_from, context_from, gpu: what the law is given, see
            `servefit.observations.observe`.

    Raises:
        ServefitError: no usable row, too few distinct points, an unknown law, model or GPU.
    """
    from servefit.observations import observe, observe_steps

    law = law or default_law(runs)
    chosen = laws.get_law(law) if isinstance(law, str) else law
    hardware = as_hardware(gpu)
    if runs.kind == "steps":
        if isinstance(context_from, Workload):
            raise ServefitError("engine steps carry their own contexts: leave the workload out")
        steps = observe_steps(runs.frame, gpu=hardware)
        calibration, unusable = chosen.fit(steps), steps.unusable
        reading = Reading(gpu=hardware)
    else:
        reading = Reading(
            batch_from=batch_from,
            context_from="lengths" if isinstance(context_from, Workload) else context_from,
            workload=context_from if isinstance(context_from, Workload) else None,
            gpu=hardware,
        )
        observed = observe(
            runs.frame, batch_from=batch_from, context_from=context_from, gpu=hardware
        )
        calibration, unusable = chosen.fit(observed.observations), observed.unusable
    calibration = replace(calibration, reading=reading)
    if not unusable:
        return calibration
    listed = "; ".join(f"row {row}: {reason}" for row, reason in unusable[:5])
    more = len(unusable) - 5
    note = f"{len(unusable)} rows left out: {listed}" + (f"; {more} more" * (more > 0))
    return replace(calibration, notes=(note, *calibration.notes))


def default_law(runs: RunTable) -> str:
    """``step``; ``slim`` for runs on a CPU.

    The step law is the better one on every published measurement of GPUs, but its priors are of
    engines on GPUs: kernel launches, block tables and all-reduces of a CPU engine are others.
    """
    on_cpu = any("cpu" in (gpu or "").lower() for gpu in runs.texts("gpu"))
    return "slim" if on_cpu else "step"


def points_of(
    calibration: Calibration,
    *,
    model: str | ModelShape | None = None,
    gpu: str | Hardware | None = None,
    input_tokens: npt.ArrayLike | None = None,
    output_tokens: npt.ArrayLike | None = None,
    workload: Workload | None = None,
    batch: npt.ArrayLike,
    tensor_parallel_size: npt.ArrayLike = 1,
    serving: Serving | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
) -> Points:
    """Points of one model; model and GPU default to the calibration's, if it has just one.

    Args:
        calibration: a fitted law, or priors.
        model, gpu: names, paths, or the objects themselves. A name that the calibration has seen
            is what it has seen, whether or not the catalogue or a file still knows it; so is a
            model by path or short name, see `as_seen`.
        input_tokens, output_tokens: lengths of equal requests.
        workload: lengths that are mixed, in their place.
        batch: requests that run at once, or the cap where ``serving.batch_is_cap``.
        tensor_parallel_size: GPUs that share each layer.
        serving: how the engine schedules.
        dtype, kv_cache_dtype: number formats, where they are not the model's own.

    Raises:
        ServefitError: an unknown model or GPU, or one that must be named and was not; a length or
            batch that is not positive; no lengths; a static batch of mixed lengths.
    """
    if workload is not None:
        if serving is not None and serving.static.any() and workload.is_mixed:
            raise ServefitError(
                "a static batch runs until its longest answer ends, which no law here predicts: "
                "give its lengths, not a workload that mixes them"
            )
        input_tokens, output_tokens = workload.input_tokens, workload.output_tokens
    if input_tokens is None or output_tokens is None:
        raise ServefitError("points need input_tokens and output_tokens, or a workload")
    shape = (
        _named(calibration.models, model)
        or (as_seen(calibration, get_model(model)) if isinstance(model, str) else model)
        or only(calibration.models, "model", "--model")
    )
    hardware = (
        _named(calibration.hardware, gpu)
        or as_hardware(gpu)
        or only(calibration.hardware, "GPU", "--gpu")
    )
    points = Points.of(
        shape.with_dtypes(dtype, kv_cache_dtype or dtype),
        hardware,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        batch=batch,
        tensor_parallel_size=tensor_parallel_size,
        serving=serving,
    )
    return points if workload is None else points.with_workload(workload)


def as_seen(calibration: Calibration, model: ModelShape) -> ModelShape:
    """The model in the number formats that it was measured in, where the fit has seen just it.

    A config's float32 is taken as bfloat16, as engines on GPUs serve it; the rows know better.
    """

    def bare(shape: ModelShape) -> ModelShape:
        told = replace(shape, max_context_tokens=None, learned_positions=False)
        return replace(told, weight_dtype="", kv_cache_dtype="", source="", notes=())

    found = [each for each in calibration.models if bare(each) == bare(model)]
    return found[0] if len(found) == 1 else model


def as_calibration(source: str | Path) -> Calibration:
    """A calibration file (``-`` is standard input), or a law's priors as ``prior:LAW``.

    Raises:
        ServefitError: the file is no calibration; the law is unknown or has no prior.
    """
    prefix, colon, law = str(source).partition(":")
    if prefix == PRIOR and colon:
        return laws.get_law(law).prior()
    return load_calibration(source)


def warnings(calibration: Calibration, points: Points) -> list[str]:
    """What to know before trusting a prediction, one sentence each.

    Where it leaves the measured ranges, what the law leaves out, what only a formula stands for,
    and what a server would not run: uneven shares of heads, batches without room in memory.
    """
    return [
        *calibration.extrapolates(points),
        *laws.cautions(calibration, points),
        *_uneven(points),
        *_no_room(points),
    ]


def _uneven(points: Points) -> list[str]:
    """Degrees of tensor parallelism that do not share the heads evenly."""
    heads = points.per_model(lambda m: m.num_attention_heads)
    shares = np.unique(
        np.stack(np.broadcast_arrays(points.tensor_parallel_size, heads), -1).reshape(-1, 2), axis=0
    )
    return [
        f"tensor_parallel_size {t:g}: does not share {h:g} query heads evenly, which engines refuse"
        for t, h in shares.tolist()
        if h % t
    ]


def _no_room(points: Points) -> list[str]:
    """Batches that a server would not run at once, where they are not caps."""
    flat, serving = flatten(points)
    capacity = serving.kv_capacity_tokens
    if (capacity < flat.input_tokens + flat.output_tokens).any():
        return [
            f"the KV cache holds about {np.nanmin(capacity):.4g} tokens, less than one request: "
            "more GPUs, smaller formats, or --kv-capacity-tokens where the engine says otherwise"
        ]
    sentences = []
    limits = {} if serving.batch_is_cap else batch_limits(flat, serving)
    for name, remedy in (
        ("KV capacity", "give the cache's size, --kv-capacity-tokens,"),
        ("token budget", "raise --max-num-batched-tokens"),
    ):
        allowed = limits.get(name, np.full_like(flat.batch, np.nan))
        over = flat.batch > allowed
        if over.any():
            sentences.append(
                f"batch {flat.batch[over].max():g}: the {name} lets about "
                f"{allowed[over].min():.4g} requests run at once; {remedy} or ask for a cap, "
                "--max-num-seqs"
            )
    return sentences


def predict(calibration: Calibration, points: Points) -> Prediction:
    """What the calibrated law predicts for ``points``; see `servefit.laws.base.Prediction`."""
    return laws.predict(calibration, points)


def as_model(model: str | ModelShape | None) -> ModelShape | None:
    """A name or the path of a config.json as a shape; raises `ServefitError` if unknown."""
    return get_model(model) if isinstance(model, str) else model


def as_hardware(gpu: str | Hardware | None) -> Hardware | None:
    """A name, file or description (`servefit.hardware.get_hardware`) as hardware."""
    return get_hardware(gpu) if isinstance(gpu, str) else gpu


def _named(seen: Sequence[_Named], name: object) -> _Named | None:
    """The one of that name; ``None`` if there is none, or several in other formats."""
    found = [each for each in seen if each.name == name]
    return found[0] if len(found) == 1 else None


def only(seen: Sequence[_T], what: str, option: str) -> _T:
    """The one that a calibration has seen; raises `ServefitError` if it must be named."""
    if len(seen) != 1:
        names = ", ".join(getattr(s, "name", str(s)) for s in seen) or "none"
        raise ServefitError(f"which {what}? The calibration has seen {names}: say {option}")
    return seen[0]
