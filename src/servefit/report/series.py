"""The rows behind the pictures, as plain values by the name of their data set.

Units are those of the axes: tokens/s, ms, s, GiB, requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from servefit.advise import Advice
from servefit.laws import Observations
from servefit.memory import GIB
from servefit.plain import to_plain
from servefit.points import FloatArray
from servefit.report.fit import in_fit
from servefit.report.matching import matching
from servefit.report.view import View

Row = dict[str, Any]
#: Latency -> the column of its rows, and what a second is in the column's unit.
LATENCY_COLUMNS: Mapping[str, tuple[str, float]] = {
    "tpot": ("tpot_ms", 1e3),
    "ttft": ("ttft_ms", 1e3),
    "e2e": ("e2e_s", 1.0),
}
COLUMNS = tuple(column for column, _ in LATENCY_COLUMNS.values())
#: How many times the batch that is asked for, and the largest that was measured, the curves go.
REACH, NEAR = 8.0, 1.25
#: Marks that lie so near each other share a label.
SAME_PLACE = 1.04
#: Labels of marks that lie nearer than this would overlap side by side.
SIDE_BY_SIDE = 1.35


def series(view: View, observations: Observations | None = None) -> dict[str, list[Row]]:
    """Every data set of a view, by its name in `servefit.report.charts`.

    Args:
        view: a question with its answer.
        observations: measured runs; those that belong to the question are drawn.
    """
    measured = [] if observations is None else measured_rows(view, observations)
    end = last_drawn(view, measured)
    curve, steps = (
        [r for r in rows if r["batch"] <= end] for rows in (curve_rows(view), step_rows(view))
    )
    slos = slo_rows(view)
    return {
        "curve": curve,
        "measured": measured,
        "extent": extent_rows([*curve, *measured], slos, steps),
        "marks": mark_rows(view, end),
        "slos": slos,
        "steps": steps,
        "memory": memory_rows(view),
    }


def last_drawn(view: View, measured: Sequence[Row]) -> float:
    """The largest batch that is drawn.

    Far more than anybody asks for may fit: the curves end at `REACH` times the recommended batch
    or the largest within an SLO, show the knee and what was measured, and all that fits if that
    is not twice as far.
    """
    curve = view.problem.curve
    last = float(np.max(curve.batch))
    ends = [NEAR * row["batch"] for row in measured]
    if view.cap is not None:
        ends.append(REACH * float(curve.batch[np.searchsorted(curve.cap, view.cap)]))
    if view.knee_batch is not None and view.knee_batch <= last:
        ends.append(2 * view.knee_batch)
    for slo in view.problem.slos:
        kept = curve.batch[curve.latency_s[slo.latency] <= slo.limit_s]
        ends += [REACH * float(np.max(kept))] if kept.size else []
    # The smallest candidate may lie beyond all of these.
    end = max(REACH * float(np.min(curve.batch)), *ends) if ends else last
    return end if 2 * end < last else last


def extent_rows(rows: Sequence[Row], slos: Sequence[Row], steps: Sequence[Row]) -> list[Row]:
    """The least and the largest batch, each with the most of every column that is drawn."""
    tops: Row = {}
    for row in (*rows, *slos):
        for name, value in row.items():
            column = name.removesuffix("_low").removesuffix("_high")
            if column in ("tokens_per_s", *COLUMNS) and value is not None:
                tops[column] = max(value, tops.get(column, 0.0))
    total: dict[float, float] = {}
    for row in steps:
        total[row["batch"]] = total.get(row["batch"], 0.0) + (row["ms"] or 0.0)
    tops["ms"] = max(total.values(), default=None)
    batches = [row["batch"] for row in rows]
    return [{"batch": batch, **tops} for batch in (min(batches), max(batches))]


def curve_rows(view: View) -> list[Row]:
    """One row a drawn cap: batch, throughput and latencies with both ends of their interval.

    The bound b of a value v is one end of an interval that is even in logarithms: the other end
    is v^2 / b.
    """
    curve, drawn = view.problem.curve, view.drawn
    columns = {
        "cap": curve.cap,
        "batch": curve.batch,
        "tokens_per_s": curve.total_tokens_per_s,
        "tokens_per_s_low": curve.throughput_bound,
        "tokens_per_s_high": curve.total_tokens_per_s**2 / curve.throughput_bound,
    }
    for name, (column, factor) in LATENCY_COLUMNS.items():
        value, bound = curve.latency_s[name] * factor, curve.latency_bound_s[name] * factor
        with np.errstate(invalid="ignore", divide="ignore"):
            columns |= {column: value, f"{column}_low": value**2 / bound, f"{column}_high": bound}
    return _rows({name: np.asarray(values)[drawn] for name, values in columns.items()})


def measured_rows(view: View, observations: Observations) -> list[Row]:
    """The measured runs that belong to the question, see `servefit.report.matching`.

    ``fitted`` says whether the calibration was fitted on it.
    """
    same = matching(view, observations).drawn
    shape = observations.rows.shape
    columns = {
        "row": observations.rows,
        "batch": observations.points.batch,
        "tokens_per_s": observations.total_tokens_per_s,
        "tpot_ms": observations.tpot_s * 1e3,
        "ttft_ms": observations.ttft_s * 1e3,
        "e2e_s": observations.e2e_s,
        "fitted": in_fit(view.calibration, observations) if same.any() else same,
    }
    return _rows({name: np.broadcast_to(v, shape)[same] for name, v in columns.items()})


def mark_rows(view: View, end: float = np.inf) -> list[Row]:
    """Vertical marks: the recommended cap, what limits the batch, and the knee.

    From the left; labels of one ``level`` do not overlap. Where the curves end before what fits
    does, none lies beyond their ``end``.
    """
    curve = view.problem.curve
    marks: list[tuple[float, str, str]] = []
    if view.cap is not None:
        batch = float(curve.batch[np.searchsorted(curve.cap, view.cap)])
        marks.append((batch, "cap", f"cap {view.cap}"))
    memory = view.problem.deployment.memory
    if memory is not None and memory.capacity_requests:
        marks.append((memory.capacity_requests, "limit", f"KV full: {memory.capacity_requests}"))
    marks += [
        (limit.max_batch, "limit", f"{limit.name}: {limit.max_batch}")
        for limit in view.problem.limits
        if limit.max_batch >= 1
    ]
    last = float(np.max(curve.batch))
    if view.knee_batch is not None and 1 <= view.knee_batch <= last:
        marks.append((view.knee_batch, "knee", f"knee {view.knee_batch:.0f}"))
    rows: list[Row] = []
    for batch, kind, label in marks:
        if batch > (1.5 * last if end >= last else end):
            continue
        near = next((r for r in rows if _ratio(r["batch"], batch) < SAME_PLACE), None)
        if near is None:
            rows.append({"batch": batch, "kind": kind, "label": label})
        else:
            near["label"] += f" · {label}"
    placed: list[Row] = []
    for row in sorted(rows, key=lambda row: float(row["batch"])):
        taken = {r["level"] for r in placed if _ratio(r["batch"], row["batch"]) < SIDE_BY_SIDE}
        level = next(level for level in range(len(rows)) if level not in taken)
        placed.append({**row, "level": level})
    return placed


def _ratio(a: float, b: float) -> float:
    return max(a / b, b / a)


def slo_rows(view: View) -> list[Row]:
    """Horizontal marks: each SLO in the column, and the unit, of its latency."""
    rows = []
    for slo in view.problem.slos:
        column, factor = LATENCY_COLUMNS[slo.latency]
        value = slo.limit_s * factor
        unit = column.rpartition("_")[2]
        rows.append({column: value, "label": f"SLO {value:.4g} {unit}", "latency": slo.latency})
    return rows


def step_rows(view: View) -> list[Row]:
    """Milliseconds by cause at each drawn batch: of a decode step, or of E2E without steps."""
    terms = view.why.terms_s if view.why is not None else view.prediction.terms_s
    batch = view.problem.curve.batch[view.drawn]
    first = np.concatenate([[True], np.diff(batch) > 0])
    return [
        row
        for order, (cause, seconds) in enumerate(terms.items())
        if np.any(np.asarray(seconds) > 0)
        for row in _rows(
            {
                "batch": batch[first],
                "ms": np.broadcast_to(np.asarray(seconds) * 1e3, batch.shape)[first],
            },
            cause=cause,
            order=order,
        )
    ]


def memory_rows(view: View) -> list[Row]:
    """One GPU's memory by use, in GiB; empty where the model or the GPU's memory is unknown.

    Without advice, or by an engine that takes nothing by itself, nothing is freed: then what
    remains for the KV cache is one part.
    """
    memory = view.problem.deployment.memory
    if memory is None or memory.reservation is None:
        return []
    held, answer = memory.reservation, view.answer
    total = held.gpu_memory_bytes
    parts = {"weights": held.weight_bytes, "other": held.other_bytes}
    if not isinstance(answer, Advice) or answer.kv_bytes is None:
        parts["left for the KV cache"] = max(held.kv_bytes, 0.0)
    else:
        parts["KV cache at the cap"] = answer.kv_bytes
        if answer.freed_bytes is not None:
            parts["freed"] = max(answer.freed_bytes, 0.0)
    rest = "not given to the engine" if held.by_default else "not taken"
    parts[rest] = max(total - sum(parts.values()), 0.0)
    ends = [*accumulate(parts.values())]
    return [
        {
            "part": part,
            "gib": size / GIB,
            "from_gib": (end - size) / GIB,
            "to_gib": end / GIB,
        }
        for (part, size), end in zip(parts.items(), ends, strict=True)
    ]


def _rows(columns: Mapping[str, FloatArray | Any], **same: Any) -> list[Row]:
    """Columns as rows of plain values, unknown ones as ``None``."""
    lists = {name: to_plain(np.asarray(values)) for name, values in columns.items()}
    return [
        {**dict(zip(lists, cells, strict=True)), **same}
        for cells in zip(*lists.values(), strict=True)
    ]
