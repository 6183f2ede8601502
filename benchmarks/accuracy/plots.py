"""One figure a setting: predicted over measured against batch, with 90 % intervals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.accuracy.settings import Setting
from servefit import figures
from servefit.evaluation import RowScore, Score, StepScore

#: More rows than this hide each other: evenly spaced ones of them are drawn.
MOST_POINTS = 120
#: Ratios beyond this are drawn at the edge.
FARTHEST = 2.0
#: Points of one batch stand side by side, this far apart on the logarithmic axis.
DODGE = 0.035


def plot(setting: Setting, step: Score, slim: Score, path: Path) -> None:
    """Write the setting's figure."""
    every = -(-len(step.rows) // MOST_POINTS)
    rows = _side_by_side([_record(r) for r in step.rows[::every]])
    chart = alt.layer(
        *_band(setting),
        *_points(rows, [_record(r) for r in slim.rows[::every]], _labels(setting, step)),
    ).properties(
        width=figures.WIDTH,
        height=figures.HEIGHT,
        title=alt.Title(setting.title, subtitle=_caption(setting, step, slim, every)),
    )
    figures.save(chart, path)


def _band(setting: Setting) -> list[Any]:
    """The line of perfect prediction in the band that the bar allows."""
    one = alt.Chart(alt.InlineData(values=[{"one": 1}]))
    one = one.mark_rule(color="#444444").encode(y="one:Q")
    if setting.bar is None:
        return [one]
    edges = {"low": 1 - setting.bar / 100, "high": 1 + setting.bar / 100}
    band = alt.Chart(alt.InlineData(values=[edges])).mark_rect(color=figures.BAND)
    return [band.encode(y="low:Q", y2="high:Q"), one]


def _points(
    rows: list[dict[str, Any]], slim: list[dict[str, Any]], labels: tuple[str, str]
) -> list[Any]:
    x_title, y_title = labels
    ends = [r[key] for r in rows for key in ("low", "high")]
    y_scale = alt.Scale(
        domain=[min(0.9, *ends) - 0.02, max(1.1, *ends) + 0.02], clamp=True, zero=False, nice=False
    )
    smallest, largest = min(r["x"] for r in rows), max(r["x"] for r in rows)
    ticks = [2**k for k in range(-1, 16) if smallest / 1.5 <= 2**k <= largest * 1.5]
    x = alt.X(
        "x:Q",
        title=x_title,
        scale=alt.Scale(type="log", domain=[smallest / 1.3, largest * 1.3], nice=False),
        axis=alt.Axis(values=ticks, grid=False, format=",d"),
    )
    y = alt.Y("ratio:Q", scale=y_scale, title=y_title)
    colour = alt.Color(
        "group:N",
        title=None,
        scale=alt.Scale(range=list(figures.PALETTE)),
        legend=alt.Legend(symbolOpacity=1, symbolType="circle"),
    )
    base = alt.Chart(alt.InlineData(values=rows))
    point = base.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=colour)
    if len({r["lengths"] for r in rows} - {""}) > 1:
        order = sorted({r["lengths"] for r in rows}, key=_numbers)
        point = point.encode(shape=alt.Shape("lengths:N", title="input→output", sort=order))
    crosses = alt.Chart(alt.InlineData(values=slim)).mark_point(
        shape="cross", size=26, color=figures.MUTED, filled=True, opacity=0.6
    )
    bars = base.mark_rule(strokeWidth=1.3, opacity=0.5)
    return [
        *([crosses.encode(x=x, y=y)] if slim else []),
        bars.encode(x=x, y=alt.Y("low:Q", scale=y_scale), y2="high:Q", color=colour),
        point,
    ]


def _side_by_side(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, those of one batch moved apart by series."""
    series = sorted(
        {(r["group"], r["lengths"]) for r in rows}, key=lambda s: (s[0], _numbers(s[1]))
    )
    if not 1 < len(series) <= 12:
        return rows
    middle = (len(series) - 1) / 2
    place = {s: math.exp(DODGE * (k - middle)) for k, s in enumerate(series)}
    return [{**r, "x": r["x"] * place[r["group"], r["lengths"]]} for r in rows]


def _record(row: RowScore | StepScore) -> dict[str, Any]:
    """x, ratio and its interval: the measurement lies inside where the bar reaches 1."""
    if isinstance(row, StepScore):
        measured, predicted = row.measured_s, row.predicted_s
        low, high = row.low_s, row.high_s
        x = row.prefill_tokens + row.decode_requests
        group, lengths = f"TP {row.tensor_parallel_size:g}", ""
    else:
        measured, predicted = row.measured_tokens_per_s, row.predicted_tokens_per_s
        low, high = row.low_tokens_per_s, row.high_tokens_per_s
        x = row.batch
        group = row.model.rpartition("/")[2].replace("-hf", "").replace("-v0.1", "")
        lengths = f"{row.input_tokens:.0f}→{row.output_tokens:.0f}"
    ratio = predicted / measured
    return {
        "x": x,
        "ratio": min(ratio, FARTHEST),
        "low": ratio if low is None else low / measured,
        "high": ratio if high is None else min(high / measured, FARTHEST),
        "group": group,
        "lengths": lengths,
    }


def _numbers(lengths: str) -> list[int]:
    return [int(n) for n in lengths.split("→") if n]


def _labels(setting: Setting, step: Score) -> tuple[str, str]:
    if isinstance(step.rows[0], StepScore):
        return "tokens in the step", "predicted / measured step time"
    x_title = "max_num_seqs" if setting.batch_from == "max_num_seqs" else "requests at once"
    return x_title, "predicted / measured throughput"


def _caption(setting: Setting, step: Score, slim: Score, every: int) -> str:
    parts = ["bars: 90 % interval"]
    if setting.bar is not None:
        parts.append(f"grey band: {setting.bar:g} %")
    if slim.rows:
        parts.append("grey crosses: SLIM")
    if every > 1:
        parts.append(f"one row in {every} of {len(step.rows)}")
    return "; ".join(parts)
