"""The report's charts for the page: without data, as wide as their place, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servefit.report import charts

HEIGHT = 220
INK = {"light": ("#1b2430", "#e3e7ec", "#56616f"), "dark": ("#e8ecf1", "#333b46", "#a4aebb")}


def specs(steps_title: str, causes: Sequence[str], theme: str) -> dict[str, Any]:
    """Vega-Lite specifications by name, see `servefit.report.series` for their data sets."""
    ink = charts.DARK if theme == "dark" else charts.PAPER
    drawn = {
        **{name: charts.over_batch(name, ink) for name in charts.METRICS},
        "steps": charts.steps(steps_title, causes),
    }
    return {
        name: {
            **chart.properties(width="container", height=HEIGHT).to_dict(),
            "autosize": {"type": "fit-x", "contains": "padding"},
            "config": config(theme),
        }
        for name, chart in drawn.items()
    }


def config(theme: str) -> dict[str, Any]:
    """Colours of text, grid and axes on a light or a dark page."""
    ink, grid, quiet = INK[theme]
    return {
        "font": "system-ui, DejaVu Sans, sans-serif",
        "background": "transparent",
        "view": {"stroke": None},
        "axis": {
            "gridColor": grid,
            "domainColor": quiet,
            "tickColor": quiet,
            "labelColor": ink,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "labelFontSize": 11,
            "titleFontSize": 12,
        },
        # As wide as any of its labels: the plot keeps its place while values change.
        "axisY": {"minExtent": 32, "maxExtent": 32},
        "legend": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12},
    }
