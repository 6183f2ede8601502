"""Rows against what the accelerators of the catalogue can do at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from servefit.errors import ServefitError
from servefit.hardware import Hardware, catalogue, get_hardware
from servefit.models import ModelShape, get_model
from servefit.runs import ceiling
from servefit.runs.ceiling import Ceiling, FloatArray
from servefit.runs.identities import running, service_time_s, tokens
from servefit.runs.problem import Finding, Problem, Severity
from servefit.runs.schema import FILE
from servefit.runs.table import RunTable

BoolArray = npt.NDArray[np.bool_]

_PEAKS = ("peak_flops_per_s", "memory_bandwidth_bytes_per_s")
_KEYS = (FILE, "model", "dtype", "kv_cache_dtype", "gpu", *_PEAKS)


@dataclass(frozen=True)
class _Group:
    """Rows of one model in one number format on one device; ``rows`` is a mask."""

    rows: BoolArray
    model: ModelShape
    top: Ceiling
    severity: Severity


def limits(table: RunTable) -> Iterator[Finding | Problem]:
    """Rows that are faster than the hardware allows; and what could not be looked at."""
    notes: list[Problem] = []
    for group in _groups(table, notes):
        if table.kind == "runs":
            yield from _run_limits(table, group)
        else:
            yield from _step_limits(table, group)
    yield from dict.fromkeys(notes)


def _run_limits(table: RunTable, group: _Group) -> Iterator[Finding]:
    """FLOP rate of all tokens; bytes that decode steps read, over E2E and over TPOT.

    A request takes part in (OL - 1) decode steps during its E2E, and at a mean batch B as many
    caches of at least IL tokens are read: E2E >= (OL - 1) (weights + B KV(IL)) / bandwidth. One
    step alone may decode few of the running requests, so TPOT is held against one cache.
    """
    n = table.numbers
    parallel = _parallel(table)
    batch, output, e2e_s = running(n), n("output_tokens"), n("e2e_mean_s")
    candidates = (
        n("total_tokens_per_s"),
        n("requests_per_s") * tokens(n),
        batch * tokens(n) / e2e_s,
    )
    names = ("total_tokens_per_s", "requests_per_s", "e2e_mean_s")
    rate = np.full(len(parallel), np.nan)
    for name, values in zip(names, candidates, strict=True):
        chosen = np.isnan(rate) & np.isfinite(values)
        rate = np.where(chosen, values, rate)
        flops = ceiling.flops_per_token(group.model) * rate
        least_s = ceiling.least_compute_s(flops, parallel, group.top)
        yield _too_fast(group, chosen & (least_s > 1), name, _flops_reason(group, flops / parallel))

    # Speculative decoding makes several tokens a step: the number of steps is not known.
    one_a_step = (output > 1) & (n("speculative_decoding") != 1)
    decode_steps = np.where(one_a_step, output - 1, np.nan)
    alone = np.where(np.isnan(batch), 1.0, batch)
    implied_s = np.where(np.isnan(e2e_s), service_time_s(n), np.nan)
    tpot_s = np.where(one_a_step, n("tpot_mean_s"), np.nan)
    for name, values, together in (
        ("e2e_mean_s", e2e_s / decode_steps, alone),
        ("total_tokens_per_s", implied_s / decode_steps, alone),
        ("tpot_mean_s", tpot_s, np.ones_like(alone)),
    ):
        read = ceiling.step_bytes(group.model, together, n("input_tokens"))
        least_s = ceiling.least_memory_s(read, parallel, group.top)
        yield _too_fast(
            group, values < least_s, name, _bytes_reason(group, read / parallel, values)
        )


def _step_limits(table: RunTable, group: _Group) -> Iterator[Finding]:
    """FLOPs of all tokens of a step, and the bytes that it reads, over its time."""
    n = table.numbers
    parallel, step_s = _parallel(table), n("step_time_s")
    decode = np.nan_to_num(n("decode_requests"))
    computed = decode + np.nan_to_num(n("prefill_tokens"))
    flops = ceiling.flops_per_token(group.model) * computed
    least_s = ceiling.least_compute_s(flops, parallel, group.top)
    yield _too_fast(
        group, step_s < least_s, "step_time_s", _flops_reason(group, flops / parallel / step_s)
    )
    read = ceiling.step_bytes(group.model, decode, np.nan_to_num(n("mean_decode_context_tokens")))
    least_s = ceiling.least_memory_s(read, parallel, group.top)
    yield _too_fast(
        group, step_s < least_s, "step_time_s", _bytes_reason(group, read / parallel, step_s)
    )


def _too_fast(group: _Group, mask: BoolArray, column: str, reason: Callable[[int], str]) -> Finding:
    return Finding(group.rows & mask, column, reason, group.severity)


def _flops_reason(group: _Group, rate: FloatArray) -> Callable[[int], str]:
    top = group.top
    return lambda i: (
        f"would take {rate[i]:.3g} FLOP/s on each device, and {top.flops_name} does "
        f"{top.flops_per_s:.3g}: a wrong unit or tensor_parallel_size, or prompt tokens from a "
        "prefix cache"
    )


def _bytes_reason(group: _Group, read: FloatArray, seconds: FloatArray) -> Callable[[int], str]:
    top = group.top
    return lambda i: (
        f"would read {read[i] / seconds[i]:.3g} B/s on each device, and {top.bandwidth_name} does "
        f"{top.bandwidth_bytes_per_s:.3g}: a wrong unit or tensor_parallel_size, or several "
        "tokens a step (speculative decoding)"
    )


def _parallel(table: RunTable) -> FloatArray:
    parallel = table.numbers("tensor_parallel_size")
    return np.where(np.isnan(parallel), 1.0, parallel)


def _groups(table: RunTable, notes: list[Problem]) -> Iterator[_Group]:
    """Rows by file, model, number formats and device; what is not known goes to ``notes``."""
    columns = [name for name in _KEYS if name in table.frame.columns]
    indexed = table.frame.with_row_index("_index")
    for values, part in indexed.group_by(columns, maintain_order=True):
        key = dict(zip(columns, values, strict=True))
        rows = np.zeros(table.frame.height, dtype=bool)
        rows[part["_index"].to_numpy()] = True

        devices: tuple[Hardware, ...] = catalogue()
        severity: Severity = "refused"
        own = _measured(key)
        try:
            if own is not None:
                devices, severity = (own,), "flagged"
            elif key.get("gpu") is not None:
                named = get_hardware(key["gpu"])
                devices = (named,) if named.has_known_peaks else devices
        except ServefitError as error:
            instead = "its rows are held against the fastest device of the catalogue instead"
            notes.append(_note(key, "gpu", f"{error}; {instead}"))
        try:
            model = get_model(key["model"]).as_served(key.get("dtype"), key.get("kv_cache_dtype"))
        except ServefitError as error:
            instead = "its rows are not held against the hardware's limits"
            notes.append(_note(key, "model", f"{error}; {instead}"))
            continue
        yield _Group(rows, model, ceiling.ceiling(devices, model.weight_dtype), severity)


def _note(key: Mapping[str, Any], column: str, reason: str) -> Problem:
    return Problem(key[FILE], None, column, str(key[column]), reason, "flagged")


def _measured(key: Mapping[str, Any]) -> Hardware | None:
    """The machine whose peaks the rows carry. They are no law of nature: a better kernel may
    exceed a measured peak, so rows that do are flagged only."""
    flops, bandwidth = (key.get(name) for name in _PEAKS)
    if flops is None or bandwidth is None:
        return None
    return Hardware(key.get("gpu") or "this machine", {"measured": flops}, bandwidth)
