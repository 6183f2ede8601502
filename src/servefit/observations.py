"""From rows of a table of runs to observations that a law can be fitted on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import polars as pl

from servefit.calibration import BatchFrom as BatchFrom
from servefit.calibration import Reading
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, Hardware, get_hardware
from servefit.laws import Observations, StepObservations
from servefit.models import ModelShape, get_model
from servefit.points import EngineSteps, FloatArray, IntArray, Points, Serving
from servefit.workload import Workload

ContextFrom = Literal["lengths", "mean_live_tokens"] | Workload

_T = TypeVar("_T", bound=Hashable)

#: Columns that tell what a row ran on.
_HARDWARE = ("gpu", "dtype", "peak_flops_per_s", "memory_bandwidth_bytes_per_s", "memory_bytes")


@dataclass(frozen=True)
class Observed:
    """Observations, and the rows that could not be one.

    Attributes:
        observations: one entry a usable row, in the frame's order.
        index: position in the frame of each of them.
        unusable: position in the file and reason of every other row.
    """

    observations: Observations
    index: IntArray
    unusable: tuple[tuple[int, str], ...]


def observe(
    frame: pl.DataFrame,
    *,
    batch_from: BatchFrom = "mean_batch",
    context_from: ContextFrom = "lengths",
    gpu: Hardware | None = None,
) -> Observed:
    """Turn rows into observations.

    The batch is ``mean_batch`` where it is known, else the static ``batch``; ``batch_from`` may
    ask for the server's cap ``max_num_seqs`` instead. The context is derived from the mean
    lengths (Eq. 12), or is ``mean_live_tokens`` / ``mean_batch`` where ``context_from`` asks for
    it; a workload there says how the lengths behind each row's means are mixed, see
    `Points.with_workload`. Throughput and E2E imply each other, T = B (IL + OL) / E2E (Eq. 6): one
    that is missing is computed. Number formats come from the rows, else from the model's config.

    Args:
        frame: rows in the schema of `servefit.runs.schema`.
        batch_from, context_from: see above.
        gpu: what the rows ran on, where they do not say so or say it wrongly.

    Raises:
        ServefitError: a model or GPU is unknown, or no row is usable.
    """
    columns = _Columns(frame)
    static = columns.number("batch")
    batch = first_known(columns.number("mean_batch"), static)
    needed = {"mean_batch or batch": batch}
    if batch_from == "max_num_seqs":
        batch = first_known(columns.number("max_num_seqs"), static)
        needed = {"max_num_seqs or batch": batch}
    input_tokens, output_tokens = columns.number("input_tokens"), columns.number("output_tokens")
    # A cap is not the batch that ran: it does not turn an E2E into a throughput or back.
    running = np.full_like(batch, np.nan) if batch_from == "max_num_seqs" else batch
    throughput, e2e_s = _complete(columns, running, input_tokens, output_tokens)
    needed |= {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "throughput or E2E": throughput,
    }
    context = None
    if context_from == "mean_live_tokens":
        context = columns.number("mean_live_tokens") / columns.number("mean_batch")
        needed["mean_live_tokens and mean_batch"] = context

    index, unusable = _usable(needed, columns.rows())
    models, hardware = _what_ran(frame[index], gpu)
    points = Points(
        models=models[0],
        hardware=hardware[0],
        model_index=models[1],
        hardware_index=hardware[1],
        input_tokens=input_tokens[index],
        output_tokens=output_tokens[index],
        batch=batch[index],
        tensor_parallel_size=_or_one(columns.number("tensor_parallel_size"))[index],
        mean_context_tokens=None if context is None else context[index],
        serving=_serving(columns, index, batch_is_cap=batch_from == "max_num_seqs"),
    )
    if isinstance(context_from, Workload):
        if points.serving is not None and points.serving.static.any():
            raise ServefitError(
                "a workload is one of requests that come and go, and some rows are static batches: "
                "leave them out with --where, or leave the workload out"
            )
        points = points.with_workload(context_from)
    observations = Observations(
        points=points,
        total_tokens_per_s=throughput[index],
        e2e_s=e2e_s[index],
        rows=columns.rows()[index],
        ttft_s=columns.number("ttft_mean_s")[index],
        tpot_s=_tpot_s(columns, e2e_s, output_tokens)[index],
        itl_s=columns.number("itl_mean_s")[index],
    )
    return Observed(observations, index, unusable)


def observe_as(frame: pl.DataFrame, reading: Reading) -> Observed:
    """`observe` with the choices of a calibration's fit.

    Raises:
        ServefitError: as `observe`.
    """
    try:
        return observe(
            frame,
            batch_from=reading.batch_from,
            context_from=reading.workload or reading.context_from,
            gpu=reading.gpu,
        )
    except ServefitError as error:
        if reading == Reading():
            raise
        raise ServefitError(f"{error} (rows are read as for the fit: {reading})") from None


def observe_steps(frame: pl.DataFrame, *, gpu: Hardware | None = None) -> StepObservations:
    """Turn rows of a table of engine steps into observations.

    Counts that a row leaves empty are 0 where the row's other phase fills the step. The decodes'
    context is ``decode_requests`` x ``mean_decode_context_tokens``.

    Raises:
        ServefitError: a model or GPU is unknown, or no row is usable.
    """
    columns = _Columns(frame)
    step_time_s = columns.number("step_time_s")
    prefill_tokens = np.nan_to_num(columns.number("prefill_tokens"))
    decode_requests = np.nan_to_num(columns.number("decode_requests"))
    context = columns.number("mean_decode_context_tokens")
    needed = {
        "step_time_s": step_time_s,
        "mean_decode_context_tokens": np.where(decode_requests > 0, context, 0.0),
    }
    index, unusable = _usable(needed, columns.rows())
    models, hardware = _what_ran(frame[index], gpu)
    prompts = first_known(
        columns.number("prefill_requests"), np.where(prefill_tokens > 0, 1.0, 0.0)
    )
    steps = EngineSteps(
        models=models[0],
        hardware=hardware[0],
        model_index=models[1],
        hardware_index=hardware[1],
        tensor_parallel_size=_or_one(columns.number("tensor_parallel_size"))[index],
        prefill_tokens=prefill_tokens[index],
        prefill_requests=prompts[index],
        prefill_kv_tokens=np.nan_to_num(columns.number("prefill_kv_tokens"))[index],
        decode_requests=decode_requests[index],
        decode_context_tokens=np.nan_to_num(decode_requests * context)[index],
    )
    rows = columns.rows()[index]
    return StepObservations(steps, step_time_s[index], rows, unusable)


def _usable(
    needed: dict[str, FloatArray], rows: IntArray
) -> tuple[IntArray, tuple[tuple[int, str], ...]]:
    """Positions where all that is needed is known; file position and reason of the others."""
    usable = np.ones(len(rows), dtype=bool)
    reasons: dict[int, str] = {}
    for name, values in needed.items():
        for position in np.flatnonzero(usable & ~np.isfinite(values)):
            reasons[int(position)] = f"{name} is missing"
        usable &= np.isfinite(values)
    index = np.flatnonzero(usable)
    unusable = tuple((int(rows[p]), reason) for p, reason in sorted(reasons.items()))
    if index.size == 0:
        detail = f": row {unusable[0][0]}: {unusable[0][1]}: fill it in" if unusable else ""
        if unusable and unusable[0][1].startswith("mean_batch or batch"):
            detail += ", or take the cap for it: --batch-from max_num_seqs"
        raise ServefitError(f"none of the {len(rows)} selected rows can be used{detail}")
    return index, unusable


def _what_ran(
    frame: pl.DataFrame, gpu: Hardware | None
) -> tuple[tuple[tuple[ModelShape, ...], IntArray], tuple[tuple[Hardware, ...], IntArray]]:
    """The distinct models and accelerators, each with every row's index into them."""
    models = _distinct(_keys(frame, "model", "dtype", "kv_cache_dtype"), _model_of)
    if gpu is not None:
        return models, ((gpu,), np.zeros(frame.height, dtype=np.int64))
    return models, _distinct(_keys(frame, *_HARDWARE), _hardware_of)


def hardware_of(frame: pl.DataFrame) -> tuple[Hardware, ...]:
    """The distinct accelerators of some rows: peaks that they carry, else the catalogue's.

    Raises:
        ServefitError: a row names none, or one that the catalogue lacks.
    """
    return _distinct(_keys(frame, *_HARDWARE), _hardware_of)[0]


def _serving(columns: _Columns, index: IntArray, *, batch_is_cap: bool) -> Serving:
    """How each row was scheduled; a row that names only a static ``batch`` was static."""
    blocks = columns.number("num_gpu_blocks") * columns.number("block_size")
    return Serving(
        static=(~np.isnan(columns.number("batch")) & np.isnan(columns.number("mean_batch")))[index],
        chunked_prefill=columns.number("chunked_prefill")[index],
        max_num_batched_tokens=columns.number("max_num_batched_tokens")[index],
        kv_capacity_tokens=first_known(columns.number("kv_capacity_tokens"), blocks)[index],
        batch_is_cap=batch_is_cap,
    )


class _Columns:
    """Columns of a frame as arrays; an absent column is all unknown."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def number(self, name: str) -> FloatArray:
        if name not in self._frame.columns:
            return np.full(self._frame.height, np.nan)
        return self._frame[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def rows(self) -> IntArray:
        if "row" not in self._frame.columns:
            return np.arange(self._frame.height)
        return self._frame["row"].to_numpy()


def _complete(
    columns: _Columns, batch: FloatArray, input_tokens: FloatArray, output_tokens: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Throughput and E2E; what is missing follows from the other rates, or from Eq. 6."""
    e2e_s = columns.number("e2e_mean_s")
    tokens = input_tokens + output_tokens
    throughput = first_known(
        columns.number("total_tokens_per_s"),
        columns.number("requests_per_s") * tokens,
        columns.number("output_tokens_per_s") * tokens / output_tokens,
        batch * tokens / e2e_s,
    )
    return throughput, first_known(e2e_s, batch * tokens / throughput)


def _tpot_s(columns: _Columns, e2e_s: FloatArray, output_tokens: FloatArray) -> FloatArray:
    """TPOT as measured, else by its definition from E2E and TTFT in service."""
    gaps = np.where(output_tokens > 1, output_tokens - 1, np.nan)
    return first_known(
        columns.number("tpot_mean_s"), (e2e_s - columns.number("ttft_mean_s")) / gaps
    )


def first_known(*candidates: FloatArray) -> FloatArray:
    """Element by element, the first that is not NaN."""
    values = candidates[0]
    for other in candidates[1:]:
        values = np.where(np.isnan(values), other, values)
    return values


def _or_one(values: FloatArray) -> FloatArray:
    return np.where(np.isnan(values), 1.0, values)


def _distinct(
    keys: Sequence[Hashable], build: Callable[..., _T]
) -> tuple[tuple[_T, ...], IntArray]:
    """Build each distinct key once: the objects, and each row's index into them."""
    order: dict[Hashable, int] = {}
    index = np.array([order.setdefault(key, len(order)) for key in keys], dtype=np.int64)
    return tuple(build(key) for key in order), index


def _keys(frame: pl.DataFrame, *names: str) -> list[tuple[object, ...]]:
    """Each row's cells of some columns; ``None`` where a column is absent."""
    cells = (
        frame[name].to_list() if name in frame.columns else [None] * frame.height for name in names
    )
    return list(zip(*cells, strict=True))


def _model_of(key: tuple[str | None, str | None, str | None]) -> ModelShape:
    name, dtype, kv_cache_dtype = key
    if name is None:
        raise ServefitError("a row names no model: fill in its column `model`")
    return get_model(name).as_served(dtype, kv_cache_dtype)


def _hardware_of(
    key: tuple[str | None, str | None, float | None, float | None, float | None],
) -> Hardware:
    """Measured peaks that the row carries, else the catalogue's under the row's name."""
    name, dtype, flops, bandwidth, memory = key
    if flops is not None and bandwidth is not None:
        # The peak is that of what ran: where no format is named, of whichever the model has.
        formats = ("float32", "float16") if dtype in (None, "auto") else (dtype,)
        return Hardware(
            name=name or "measured",
            peak_flops_per_s=dict.fromkeys(formats, flops),
            memory_bandwidth_bytes_per_s=bandwidth,
            memory_bytes=memory,
        )
    if name is None:
        raise ServefitError(
            "a row names no GPU: give --gpu NAME (see `servefit hardware`), or --gpu unknown to "
            "fit its rates"
        )
    return UNKNOWN if name == "unknown" else get_hardware(name)
