"""Figures of a study, one module a kind; Altair is needed, see the extra ``plot``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from servefit.figures import MUTED, PALETTE


@dataclass(frozen=True)
class Figure:
    """A figure.

    Attributes:
        name: stem of its files.
        title: one line.
        caption: what it shows, and what was left out.
        chart: an Altair chart.
    """

    name: str
    title: str
    caption: str
    chart: Any


#: Colour of each law in every figure; what was measured is black.
LAW_COLOURS: Mapping[str, str] = {
    "slim": PALETTE[0],
    "step": PALETTE[1],
    "llmvisor": PALETTE[2],
    "imai": PALETTE[3],
    "imai-roofline": PALETTE[4],
}
#: Of curves: the palette without the yellow that paper hardly shows.
LINE_COLOURS = (*PALETTE[:6], PALETTE[7])
TRAINED = MUTED
BATCH_TITLE = "mean batch (requests)"
THROUGHPUT_TITLE = "throughput (tokens/s)"
E2E_TITLE = "E2E latency (s)"


def panel_title(text: str) -> alt.TitleParams:
    """A panel's title, flush with its plot."""
    return alt.TitleParams(text, frame="group", fontSize=12, offset=8)


def grid_of(*rows: Sequence[Any]) -> Any:
    """Panels in rows of equal length, their plots aligned whatever their labels take."""
    spacing = {"row": 62, "column": 72}
    panels = [panel for row in rows for panel in row]
    return alt.concat(*panels, columns=len(rows[0]), bounds="flush", spacing=spacing)


def law_scale(laws: Iterable[str]) -> alt.Scale:
    """The laws' colours, for those that are shown."""
    shown = list(laws)
    others = iter(PALETTE[5:])
    return alt.Scale(domain=shown, range=[LAW_COLOURS.get(n) or next(others) for n in shown])


def batch_axis(field: str = "batch") -> alt.X:
    """A logarithmic axis of requests."""
    return alt.X(
        f"{field}:Q",
        title=BATCH_TITLE,
        scale=alt.Scale(type="log", base=2, nice=False, padding=8),
        axis=alt.Axis(values=[2**k for k in range(0, 14, 2)], format="d"),
    )


def amount_axis(field: str, title: str) -> alt.Y:
    """A linear axis from 0 with short labels; 0 is 0 and not 0k."""
    label = "datum.value == 0 ? '0' : datum.label"
    axis = alt.Axis(format="~s", tickCount=5, labelExpr=label)
    return alt.Y(f"{field}:Q", title=title, axis=axis)


def log_axis(
    title: str, values: Iterable[float | None], channel: type[Any] = alt.Y, field: str = "value"
) -> Any:
    """A logarithmic axis over ``values``, with ticks at 1, 2 and 5 times powers of ten."""
    known = [v for v in values if v is not None and v > 0 and math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    room = max((high / low) ** 0.07, 1.02)
    # No tick in the outermost part: its label would stand out of the plot.
    ticks = log_ticks(low, high)
    if len(ticks) < 2:
        ticks = log_ticks(low / room, high * room)
    return channel(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", domain=[low / room, high * room], nice=False),
        axis=alt.Axis(format="~s" if high >= 1000 else "~g", values=ticks),
    )


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two numbers; over long spans fewer of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{f}e{p}") for p in powers for f in factors]
        ticks = [t for t in ticks if low <= t <= high]
        if len(ticks) <= 7:
            break
    return ticks


def legend_below(**options: Any) -> alt.Legend:
    """A legend under the plot, so that the plot keeps the column's width."""
    defaults = {"columns": 4, "labelLimit": 240, "symbolOpacity": 1}
    return alt.Legend(orient="bottom", **{**defaults, **options})
