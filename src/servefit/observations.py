"""From rows of a table of runs to observations that a law can be fitted on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import polars as pl

from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, Hardware, get_hardware
from servefit.laws import Observations
from servefit.models import ModelShape, get_model
from servefit.points import FloatArray, IntArray, Points

BatchFrom = Literal["mean_batch", "max_num_seqs"]
ContextFrom = Literal["lengths", "mean_live_tokens"]

_T = TypeVar("_T", bound=Hashable)


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
    it. Throughput and E2E imply each other, T = B (IL + OL) / E2E (Eq. 6): one that is missing is
    computed. Number formats come from the rows, else from the model's config.

    Args:
        frame: rows in the schema of `servefit.runs.schema`.
        batch_from, context_from: see above.
        gpu: what the rows ran on, where they do not say so or say it wrongly.

    Raises:
        ServefitError: a model or GPU is unknown, or no row is usable.
    """
    columns = _Columns(frame)
    static = columns.number("batch")
    if batch_from == "max_num_seqs":
        batch = np.where(np.isnan(static), columns.number("max_num_seqs"), static)
    else:
        mean = columns.number("mean_batch")
        batch = np.where(np.isnan(mean), static, mean)
    lengths = columns.number("input_tokens"), columns.number("output_tokens")
    throughput, e2e_s = _complete(
        batch * (lengths[0] + lengths[1]),
        columns.number("total_tokens_per_s"),
        columns.number("e2e_mean_s"),
        batch_is_cap=batch_from == "max_num_seqs",
    )
    context = None
    needed: dict[str, FloatArray] = {
        "input_tokens": lengths[0],
        "output_tokens": lengths[1],
        "max_num_seqs or batch" if batch_from == "max_num_seqs" else "mean_batch or batch": batch,
        "total_tokens_per_s or e2e_mean_s": throughput,
    }
    if context_from == "mean_live_tokens":
        live = columns.number("mean_live_tokens")
        context = live / columns.number("mean_batch")
        needed["mean_live_tokens and mean_batch"] = context

    usable = np.ones(frame.height, dtype=bool)
    reasons: dict[int, str] = {}
    for name, values in needed.items():
        for position in np.flatnonzero(usable & ~np.isfinite(values)):
            reasons[int(position)] = f"{name} is missing"
        usable &= np.isfinite(values)
    index = np.flatnonzero(usable)
    rows = columns.rows()
    unusable = tuple((int(rows[p]), reason) for p, reason in sorted(reasons.items()))
    if index.size == 0:
        detail = f": row {unusable[0][0]}: {unusable[0][1]}" if unusable else ""
        raise ServefitError(f"none of the {frame.height} selected rows can be used{detail}")

    kept = frame[index]
    models, model_index = _distinct(_model_keys(kept), _model_of)
    hardware, hardware_index = _distinct(
        _hardware_keys(kept), _hardware_of if gpu is None else lambda key: gpu
    )
    parallel = columns.number("tensor_parallel_size")[index]
    observations = Observations(
        points=Points(
            models=models,
            hardware=hardware,
            model_index=model_index,
            hardware_index=hardware_index,
            input_tokens=lengths[0][index],
            output_tokens=lengths[1][index],
            batch=batch[index],
            tensor_parallel_size=np.where(np.isnan(parallel), 1.0, parallel),
            mean_context_tokens=None if context is None else context[index],
        ),
        total_tokens_per_s=throughput[index],
        e2e_s=e2e_s[index],
        rows=rows[index],
    )
    return Observed(observations, index, unusable)


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
    tokens: FloatArray, throughput: FloatArray, e2e_s: FloatArray, *, batch_is_cap: bool
) -> tuple[FloatArray, FloatArray]:
    """Fill in whichever of throughput and E2E is missing, by Eq. 6.

    A cap is not the batch that ran, so it implies neither.
    """
    if batch_is_cap:
        return throughput, e2e_s
    with np.errstate(divide="ignore", invalid="ignore"):
        filled = np.where(np.isnan(throughput), tokens / e2e_s, throughput)
        return filled, np.where(np.isnan(e2e_s), tokens / throughput, e2e_s)


def _distinct(
    keys: Sequence[Hashable], build: Callable[..., _T]
) -> tuple[tuple[_T, ...], IntArray]:
    """Build each distinct key once: the objects, and each row's index into them."""
    order: dict[Hashable, int] = {}
    index = np.array([order.setdefault(key, len(order)) for key in keys], dtype=np.int64)
    return tuple(build(key) for key in order), index


def _cells(frame: pl.DataFrame, name: str) -> list[object]:
    return frame[name].to_list() if name in frame.columns else [None] * frame.height


def _model_keys(frame: pl.DataFrame) -> list[Hashable]:
    names = ("model", "dtype", "kv_cache_dtype")
    return list(zip(*(_cells(frame, name) for name in names), strict=True))


def _model_of(key: tuple[str | None, str | None, str | None]) -> ModelShape:
    name, dtype, kv_cache_dtype = key
    if name is None:
        raise ServefitError("a row names no model: fill in its column `model`")
    shape = get_model(name)
    # Of quantised weights `dtype` is what they are computed in, not what is stored.
    if dtype is not None and dtype != "auto" and shape.stored_bytes is None:
        shape = shape.with_dtypes(weight_dtype=dtype, kv_cache_dtype=dtype)
    if kv_cache_dtype is not None and kv_cache_dtype != "auto":
        shape = shape.with_dtypes(kv_cache_dtype=kv_cache_dtype)
    return shape


def _hardware_keys(frame: pl.DataFrame) -> list[Hashable]:
    names = ("gpu", "dtype", "peak_flops_per_s", "memory_bandwidth_bytes_per_s", "memory_bytes")
    return list(zip(*(_cells(frame, name) for name in names), strict=True))


def _hardware_of(
    key: tuple[str | None, str | None, float | None, float | None, float | None],
) -> Hardware:
    """Measured peaks that the row carries, else the catalogue's under the row's name."""
    name, dtype, flops, bandwidth, memory = key
    if flops is not None and bandwidth is not None:
        return Hardware(
            name=name or "measured",
            peak_flops_per_s={dtype or "float32": flops},
            memory_bandwidth_bytes_per_s=bandwidth,
            memory_bytes=memory,
        )
    if name is None:
        raise ServefitError(
            "a row names no GPU: give --gpu NAME (see `servefit hardware`), or --gpu unknown to "
            "fit its rates"
        )
    return UNKNOWN if name == "unknown" else get_hardware(name)
