"""Figures of a study, one module a kind; Altair is needed, see the extra ``plot``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
TRAINED = MUTED
BATCH_TITLE = "mean batch (requests)"
THROUGHPUT_TITLE = "throughput (tokens/s)"
E2E_TITLE = "E2E latency (s)"


def chart_of(rows: Iterable[Mapping[str, Any]]) -> Any:
    """An Altair chart of some rows, which travel in it."""
    return alt.Chart(alt.Data(values=[dict(row) for row in rows]))  # type: ignore[no-untyped-call]


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


def log_axis(title: str, channel: type[Any] = alt.Y, field: str = "value") -> Any:
    """A logarithmic axis with round labels."""
    return channel(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(format="~s", tickCount=5, labelOverlap="greedy"),
    )


def legend_below(**options: Any) -> alt.Legend:
    """A legend under the plot, so that the plot keeps the column's width."""
    return alt.Legend(orient="bottom", **{"columns": 4, "labelLimit": 240, **options})
