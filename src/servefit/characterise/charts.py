"""Figures 3 to 8 of the paper's characterisation, from rows of plain values; needs Altair.

Every function takes rows as mappings and returns a chart for `servefit.figures.save`, or ``None``
where the rows hold nothing to draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from servefit.characterise.classify import ATTENTION, GEMM, OTHER, OUTSIDE, UNCLASSIFIED
from servefit.characterise.run import Size
from servefit.figures import MUTED, PALETTE, chart_of

Row = Mapping[str, Any]
#: Colours that a class or group keeps in every figure; attention is always the same.
COLOURS: Mapping[str, str] = {
    "attention decode": PALETTE[1],
    "attention prefill": PALETTE[4],
    "QKV/O projections": PALETTE[5],
    "FFN": PALETTE[0],
    "LM head": PALETTE[2],
    ATTENTION: PALETTE[1],
    GEMM: PALETTE[0],
    OTHER: MUTED,
    UNCLASSIFIED: PALETTE[6],
    OUTSIDE: "#D9D9D9",
    "prefill": PALETTE[4],
    "decode": PALETTE[0],
}
_AXES = (("batch", "batch"), ("input_tokens", "input tokens"), ("output_tokens", "output tokens"))
CONTEXT_TITLE = "active context (tokens)"
PANEL_WIDTH, PANEL_HEIGHT = 170, 230


def placed(sizes: Sequence[Size]) -> tuple[str, str | None, str, str | None]:
    """Which of batch, input and output tokens to draw along x, and in columns; with their titles.

    What varies is drawn: one along x; of two, that with more values along x and the other in
    columns; where all three vary, the whole label along x.
    """
    counts = [(len({getattr(s, field) for s in sizes}), field, title) for field, title in _AXES]
    varied = sorted([c for c in counts if c[0] > 1], key=lambda c: -c[0])
    if len(varied) > 2:
        return "label", None, "", None
    (_, x, x_title) = varied[0] if varied else counts[0]
    (_, column, column_title) = varied[1] if len(varied) == 2 else (0, None, None)
    return x, column, x_title, column_title


def size_columns(size: Size) -> dict[str, Any]:
    """The columns that `placed` speaks of."""
    return {
        "batch": size.batch,
        "input_tokens": size.input_tokens,
        "output_tokens": size.output_tokens,
        "active_context_tokens": size.active_context_tokens,
        "label": size.label,
    }


def stacked_shares(rows: Sequence[Row], sizes: Sequence[Size], title: str) -> Any:
    """Fig. 5: share of the time by class; rows have ``part`` and ``share``."""
    if not rows:
        return None
    order = [name for name in COLOURS if any(r["part"] == name for r in rows)]
    y = alt.Y("share:Q", title="share of time", axis=alt.Axis(format="%"))
    return _stacked(rows, sizes, title, y.scale(domain=[0, 1]), order)


def stacked_seconds(rows: Sequence[Row], sizes: Sequence[Size], title: str) -> Any:
    """Fig. 3: seconds in prefill and decode; rows have ``part`` and ``seconds``."""
    if not rows:
        return None
    return _stacked(rows, sizes, title, alt.Y("seconds:Q", title="time (s)"), ["prefill", "decode"])


def _stacked(
    rows: Sequence[Row], sizes: Sequence[Size], title: str, y: Any, order: Sequence[str]
) -> Any:
    x, column, x_title, column_title = placed(sizes)
    numbered = [{**row, "order": order.index(row["part"])} for row in rows]
    chart = (
        chart_of(numbered)
        .mark_bar()
        .encode(
            x=alt.X(
                f"{x}:O", title=x_title, sort=None if x == "label" else "ascending", axis=_axis(x)
            ),
            y=y,
            color=_colour("part", order),
            order=alt.Order("order:Q", sort="ascending"),
        )
        .properties(width=alt.Step(34), height=PANEL_HEIGHT)
    )
    if column:
        chart = chart.encode(column=alt.Column(f"{column}:O", title=column_title, spacing=14))
    return chart.properties(title=title)


def utilisation(rows: Sequence[Row], sizes: Sequence[Size], title: str) -> Any:
    """Fig. 4: mean (bars) and peak (crosses) in %; rows have ``part``, ``mean`` and ``peak``."""
    if not rows:
        return None
    x, column, x_title, column_title = placed(sizes)
    order = list(dict.fromkeys(row["part"] for row in rows))
    shown = alt.X(
        f"{x}:O", title=x_title, sort=None if x == "label" else "ascending", axis=_axis(x)
    )
    base = chart_of(rows).encode(
        x=shown,
        xOffset=alt.XOffset("part:N", sort=order),
        color=alt.Color("part:N", title=None, sort=order, legend=_legend()),
    )
    bars = base.mark_bar().encode(
        y=alt.Y("mean:Q", title="of peak (%)", scale=alt.Scale(domain=[0, 100]))
    )
    crosses = base.mark_point(shape="cross", filled=True, size=45, color="#222222").encode(
        y="peak:Q", color=alt.value("#222222")
    )
    layers = alt.layer(bars, crosses).properties(height=PANEL_HEIGHT, width=alt.Step(16))
    if column:
        layers = layers.facet(column=alt.Column(f"{column}:O", title=column_title), spacing=14)
    return layers.properties(title=title)


def roofline(
    points: Sequence[Row], flops_per_s: float, bytes_per_s: float, title: str, subtitle: str = ""
) -> Any:
    """Fig. 6: FLOP/s over FLOPs a byte, under both roofs.

    Rows have ``intensity``, ``flops_per_s``, ``part`` (colour), ``phase`` (shape) and ``label``.
    """
    known = [p for p in points if p["intensity"] and p["flops_per_s"]]
    if not known:
        return None
    ridge = flops_per_s / bytes_per_s
    low = min(min(p["intensity"] for p in known), ridge) / 2
    high = max(max(p["intensity"] for p in known), ridge) * 3
    roof = [{"intensity": i, "rate": min(flops_per_s, i * bytes_per_s)} for i in (low, ridge, high)]
    least = min(min(p["flops_per_s"] for p in known), low * bytes_per_s) / 2
    x = alt.X(
        "intensity:Q",
        title="arithmetic intensity (FLOPs a byte)",
        scale=alt.Scale(type="log", domain=[low, high], nice=False),
        axis=alt.Axis(format="~g", values=_decades(low, high)),
    )
    scale = alt.Scale(type="log", domain=[least, flops_per_s * 2], nice=False)
    y_axis = alt.Axis(format="~s", values=_decades(least, flops_per_s * 2))
    y = alt.Y("rate:Q", title="FLOP/s", scale=scale, axis=y_axis)
    line = chart_of(roof).mark_line(color="#444444", strokeWidth=1.5).encode(x=x, y=y)
    order = list(dict.fromkeys(p["part"] for p in known))
    dots = (
        chart_of({**p, "rate": p["flops_per_s"]} for p in known)
        .mark_point(filled=True, size=60, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=_colour("part", order),
            shape=alt.Shape("phase:N", title=None, legend=_legend()),
            tooltip=["label:N", "part:N", "phase:N", "rate:Q"],
        )
    )
    return alt.layer(line, dots).properties(title=alt.Title(title, subtitle=subtitle or ""))


def against_context(
    rows: Sequence[Row],
    field: str,
    y_title: str,
    title: str,
    *,
    limit: float | None = None,
    limit_label: str = "",
    percent: bool = False,
    lines: str = "batch",
) -> Any:
    """A value against the active context; rows have ``field`` and size columns.

    Args:
        rows: the points.
        field, y_title, title: what is drawn along y.
        limit, limit_label: a line across, and what it is.
        percent: whether the value is a share.
        lines: ``batch``, or ``label`` for a line a batch and lengths.
    """
    known = [r for r in rows if r.get(field) is not None]
    if not known:
        return None
    contexts = [r["active_context_tokens"] for r in known]
    x = alt.X(
        "active_context_tokens:Q",
        title=CONTEXT_TITLE,
        scale=alt.Scale(type="log", domain=[min(contexts) / 1.3, max(contexts) * 1.3], nice=False),
        axis=alt.Axis(format="~s", values=_decades(min(contexts) / 1.3, max(contexts) * 1.3)),
    )
    axis = alt.Axis(format="%" if percent else "~s")
    top = max([r[field] for r in known] + ([limit] if limit else []))
    scale = alt.Scale(domain=[0, 1 if percent else top * 1.1], nice=False)
    y = alt.Y(f"{field}:Q", title=y_title, axis=axis, scale=scale)
    points = alt.OverlayMarkDef(size=45, filled=True) if lines == "batch" else False
    title_of_lines = "batch" if lines == "batch" else None
    legend = alt.Legend() if lines == "batch" else alt.Legend(orient="bottom", columns=3)
    order = list(dict.fromkeys(r[lines] for r in sorted(known, key=lambda r: r["batch"])))
    drawn = (
        chart_of(known)
        .mark_line(point=points)
        .encode(
            x=x,
            y=y,
            color=alt.Color(f"{lines}:N", title=title_of_lines, sort=order, legend=legend),
        )
    )
    layers = [drawn]
    if limit is not None:
        rule = [{"y": limit, "text": limit_label, "x": min(contexts) / 1.2}]
        layers.append(chart_of(rule).mark_rule(color=MUTED, strokeDash=[5, 4]).encode(y="y:Q"))
        text = chart_of(rule).mark_text(align="left", dy=-7, color="#555555")
        layers.append(text.encode(x="x:Q", y="y:Q", text="text:N"))
    return alt.layer(*layers).properties(title=title)


def grouped_bars(rows: Sequence[Row], sizes: Sequence[Size], y_title: str, title: str) -> Any:
    """Figs. 7 and 8: percentages side by side; rows have ``part`` and ``value``."""
    if not rows:
        return None
    x, column, x_title, column_title = placed(sizes)
    order = list(dict.fromkeys(row["part"] for row in rows))
    chart = (
        chart_of(rows)
        .mark_bar()
        .encode(
            x=alt.X(
                f"{x}:O", title=x_title, sort=None if x == "label" else "ascending", axis=_axis(x)
            ),
            xOffset=alt.XOffset("part:N", sort=order),
            y=alt.Y("value:Q", title=y_title),
            color=alt.Color("part:N", title=None, sort=order, legend=_legend()),
        )
        .properties(height=PANEL_HEIGHT, width=alt.Step(16))
    )
    if column:
        chart = chart.encode(column=alt.Column(f"{column}:O", title=column_title, spacing=14))
    return chart.properties(title=title)


def _axis(x: str) -> Any:
    """Numbers upright, whole labels slanted."""
    return alt.Axis(labelAngle=-40 if x == "label" else 0, labelLimit=200)


def _colour(field: str, order: Sequence[str]) -> Any:
    colours = [COLOURS.get(name, PALETTE[i % len(PALETTE)]) for i, name in enumerate(order)]
    scale = alt.Scale(domain=list(order), range=colours)
    return alt.Color(f"{field}:N", title=None, scale=scale, sort=list(order), legend=_legend())


def _legend() -> Any:
    return alt.Legend(orient="bottom", columns=6, labelLimit=220)


def _decades(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers; with 3 between them where these are few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [10.0**p for p in range(first, last + 1)]
    if len([t for t in ticks if low <= t <= high]) < 4:
        ticks += [3 * t for t in ticks]
    return sorted(t for t in ticks if low <= t <= high)
