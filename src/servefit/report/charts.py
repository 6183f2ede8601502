"""The pictures of a view as Altair charts over named data sets, see `servefit.report.series`.

The charts hold no data: the report puts the rows into them, the what-if page sends the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from servefit.figures import MUTED, PALETTE

BLUE, ORANGE, GREEN, PINK, AMBER, SKY = PALETTE[:6]
CAUSE_COLOURS = {
    "overhead": "#9AA5B1",
    "fixed": "#9AA5B1",
    "weights": BLUE,
    "compute": AMBER,
    "prefill": AMBER,
    "decode": BLUE,
    "dense decode": BLUE,
    "KV cache": ORANGE,
    "KV traffic": ORANGE,
    "communication": PINK,
}
PART_COLOURS = {
    "weights": BLUE,
    "other": "#9AA5B1",
    "KV cache at the cap": ORANGE,
    "left for the KV cache": "#F2BE94",
    "freed": GREEN,
    "not given to the engine": "#DDE2E8",
    "not taken": "#DDE2E8",
}
LEFT_FOOT = ("height", {"align": "left", "dx": 5, "baseline": "bottom", "dy": -3})
RIGHT_FOOT = ("height", {"align": "left", "dx": 5, "baseline": "top", "dy": 4})
LEFT_HEAD = (0, {"align": "right", "dx": -5, "baseline": "bottom", "dy": -3})
RIGHT_HEAD = (0, {"align": "right", "dx": -5, "baseline": "top", "dy": 4})
MIDDLE = ({"expr": "height / 2"}, {"align": "center", "baseline": "top", "dy": 4})
Place = tuple[Any, Mapping[str, Any]]
#: Where the labels of marks stand along their rules: a test of the mark, and the place. Throughput
#: leaves room at the foot; a latency does at the head, but where it ends, by what limits the batch.
UNDER_THE_CURVE: tuple[tuple[str, Place], ...] = (
    ("datum.level % 3 === 0", LEFT_FOOT),
    ("datum.level % 3 === 1", RIGHT_HEAD),
    ("datum.level % 3 === 2", MIDDLE),
)
OVER_THE_CURVE: tuple[tuple[str, Place], ...] = (
    ("datum.level % 3 === 0 && datum.kind !== 'limit'", LEFT_HEAD),
    ("datum.level % 3 === 1 && datum.kind !== 'limit'", RIGHT_HEAD),
    ("datum.level % 3 === 0 && datum.kind === 'limit'", LEFT_FOOT),
    ("datum.level % 3 === 1 && datum.kind === 'limit'", RIGHT_FOOT),
    ("datum.level % 3 === 2", MIDDLE),
)
BATCH = "requests running at once (batch)"


@dataclass(frozen=True)
class Ink:
    """Colours that depend on the page: its own, of the prediction, measured dots, marks and SLOs.

    Those of marks and SLOs are read as text: at least 4.5 : 1 against the page.
    """

    page: str = "white"
    line: str = BLUE
    dots: str = "black"
    limit: str = "#5F6B7A"
    slo: str = "#B5348A"
    cap: str = "#B84F00"
    knee: str = "#007A59"

    @property
    def rim(self) -> dict[str, Any]:
        """What keeps a text apart from what it lies upon: the same text below it, in outline."""
        return {"stroke": self.page, "strokeWidth": 4, "strokeJoin": "round"}


PAPER = Ink()
DARK = Ink("#1A2027", SKY, "#FFFFFF", "#B4BECA", "#F08FCB", "#F0A35E", "#3FC79A")


@dataclass(frozen=True)
class Metric:
    """A quantity that is drawn against the batch: its column and its axis title."""

    column: str
    title: str
    heading: str


METRICS: Mapping[str, Metric] = {
    "throughput": Metric("tokens_per_s", "total tokens/s", "Throughput"),
    "tpot": Metric("tpot_ms", "TPOT (ms)", "Time per output token"),
    "ttft": Metric("ttft_ms", "TTFT (ms)", "Time to first token, in service"),
    "e2e": Metric("e2e_s", "E2E (s)", "Time of a request, in service"),
}


def named(name: str) -> Any:
    """A chart over a named data set."""
    return alt.Chart(alt.NamedData(name))


def batch_axis() -> alt.X:
    """A logarithmic axis of requests, a tick at every second power of two."""
    return alt.X(
        "batch:Q",
        title=BATCH,
        scale=alt.Scale(type="log", base=2, nice=False, padding=6),
        axis=alt.Axis(values=[4**k for k in range(11)], format=",d", grid=False),
    )


def over_batch(name: str, ink: Ink = PAPER) -> Any:
    """Throughput or a latency: prediction, interval, measured points, marks and SLO.

    Points that were not in the fit are hollow.
    """
    metric = METRICS[name]
    column = metric.column
    y = _amount(column, metric.title)
    curve = named("curve")
    tip = [
        alt.Tooltip("cap:Q", title="batch cap"),
        alt.Tooltip("batch:Q", title="running", format=".4~g"),
        alt.Tooltip(f"{column}:Q", title=metric.title, format=",.4~g"),
        alt.Tooltip(f"{column}_low:Q", title="interval from", format=",.4~g"),
        alt.Tooltip(f"{column}_high:Q", title="to", format=",.4~g"),
    ]
    band = curve.mark_area(color=ink.line, opacity=0.2).encode(
        x=batch_axis(), y=_amount(f"{column}_low", metric.title), y2=f"{column}_high:Q"
    )
    line = curve.mark_line(color=ink.line, strokeWidth=2.5).encode(x=batch_axis(), y=y)
    hover = curve.mark_point(opacity=0, size=120).encode(x=batch_axis(), y=y, tooltip=tip)
    measured = (
        named("measured")
        .mark_point(stroke=ink.dots, size=36, strokeWidth=1.5, opacity=1)
        .encode(
            x=batch_axis(),
            y=y,
            fill=alt.condition("datum.fitted", alt.value(ink.dots), alt.value("transparent")),
            tooltip=[
                alt.Tooltip("row:Q", title="row"),
                alt.Tooltip("fitted:N", title="in the fit"),
                alt.Tooltip("batch:Q", title="mean batch", format=".4~g"),
                alt.Tooltip(f"{column}:Q", title="measured", format=",.4~g"),
            ],
        )
    )
    rules, labels = _marks(ink, UNDER_THE_CURVE if name == "throughput" else OVER_THE_CURVE)
    slo = [] if name == "throughput" else _slo(name, y, ink)
    return alt.layer(_extent(), _extent(y), band, rules, line, *slo, *labels, measured, hover)


def _amount(column: str, title: str, stack: Any = alt.Undefined) -> alt.Y:
    """A linear axis from 0."""
    label = "datum.value == 0 ? '0' : datum.label"
    axis = alt.Axis(format="~s", tickCount=5, labelExpr=label)
    return alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=True), axis=axis, stack=stack)


def _extent(y: Any = alt.Undefined) -> Any:
    """Nothing to see: every picture of a view spans the same batches, and all that it shows."""
    return named("extent").mark_point(opacity=0, size=0).encode(x=batch_axis(), y=y)


def _marks(ink: Ink, places: Iterable[tuple[str, Place]]) -> tuple[Any, list[Any]]:
    """Vertical rules, and the labels along them, of near ones at different heights."""
    kinds = {"cap": ink.cap, "limit": ink.limit, "knee": ink.knee}
    scale = alt.Scale(domain=list(kinds), range=list(kinds.values()))
    colour = alt.Color("kind:N", scale=scale, legend=None)
    marks = named("marks")
    rules = marks.mark_rule(strokeWidth=1.5).encode(
        x=batch_axis(),
        color=colour,
        strokeDash=alt.StrokeDash(
            "kind:N",
            scale=alt.Scale(domain=list(kinds), range=[[1, 0], [5, 3], [2, 3]]),
            legend=None,
        ),
    )
    labels = [
        marks.transform_filter(test)
        .mark_text(angle=270, fontSize=11, fontWeight="bold", **place, **look)
        .encode(x=batch_axis(), y=alt.value(y), text="label:N", color=colour)
        for look in (ink.rim, {})
        for test, (y, place) in places
    ]
    return rules, labels


def _slo(name: str, y: alt.Y, ink: Ink) -> list[Any]:
    """A horizontal rule at the SLO of this latency."""
    slos = named("slos").transform_filter(f"datum.latency === '{name}'")
    rule = slos.mark_rule(color=ink.slo, strokeWidth=1.5, strokeDash=[6, 3]).encode(y=y)
    labels = [
        slos.mark_text(
            color=ink.slo, align="left", baseline="bottom", dx=4, dy=-3, fontSize=11,
            fontWeight="bold", **look,
        ).encode(x=alt.value(0), y=y, text="label:N")
        for look in (ink.rim, {})
    ]  # fmt: skip
    return [rule, *labels]


def steps(title: str, causes: Iterable[str]) -> Any:
    """Time by cause, stacked, against the batch."""
    shown = list(causes)
    areas = (
        named("steps")
        .mark_area(opacity=0.9, line=False)
        .encode(
            x=batch_axis(),
            y=_amount("ms", title, stack="zero"),
            color=alt.Color(
                "cause:N",
                title=None,
                scale=alt.Scale(domain=shown, range=[CAUSE_COLOURS.get(c, SKY) for c in shown]),
                legend=alt.Legend(orient="bottom", columns=3, symbolType="square"),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("batch:Q", format=".4~g"),
                alt.Tooltip("cause:N"),
                alt.Tooltip("ms:Q", format=".4~g"),
            ],
        )
    )
    return alt.layer(_extent(), _extent(_amount("ms", title, stack=None)), areas)


def memory(parts: Sequence[str]) -> Any:
    """One GPU's memory by use; ``parts`` as they come."""
    return (
        named("memory")
        .mark_bar(height=34)
        .encode(
            x=alt.X(
                "from_gib:Q", title="memory of one GPU (GiB)", axis=alt.Axis(tickCount=6)
            ),
            x2="to_gib:Q",
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=list(parts), range=[PART_COLOURS[part] for part in parts]),
                legend=alt.Legend(orient="bottom", columns=3, symbolType="square"),
            ),
            tooltip=[alt.Tooltip("part:N"), alt.Tooltip("gib:Q", title="GiB", format=".3~g")],
        )
    )  # fmt: skip


def filled(chart: Any, data: Mapping[str, Any], **size: Any) -> Any:
    """The chart with its rows in it and a size."""
    whole = chart.properties(**size) if size else chart.copy()
    whole.datasets = dict(data)
    return whole


def main_figure(
    data: Mapping[str, Any], latencies: Sequence[str], title: str, subtitle: list[str]
) -> Any:
    """Throughput beside the latencies that matter: the figure for a README or a slide."""
    panels = [
        over_batch(name).properties(width=330, height=270, title=_panel(name))
        for name in ("throughput", *latencies)
    ]
    columns = 2 if len(panels) == 4 else len(panels)
    whole = alt.concat(*panels, columns=columns, spacing=28).properties(
        title=alt.TitleParams(title, subtitle=subtitle)
    )
    return filled(whole, data)


def _panel(name: str) -> alt.TitleParams:
    return alt.TitleParams(METRICS[name].heading, fontSize=12, offset=8, frame="group")


def predicted_against_measured() -> Any:
    """One dot a run over the diagonal, both axes logarithmic; data set ``fit``."""
    scale = alt.Scale(type="log", nice=False, padding=8)
    axis = alt.Axis(format="~s", tickCount=4)
    x = alt.X("measured:Q", title="measured tokens/s", scale=scale, axis=axis)
    diagonal = named("fit").mark_line(color=MUTED, strokeWidth=1).encode(
        x=x, y=alt.Y("measured:Q", title="predicted tokens/s", scale=scale, axis=axis)
    )  # fmt: skip
    dots = named("fit").mark_point(filled=True, size=36).encode(
        x=x, y=alt.Y("predicted:Q", title="predicted tokens/s", scale=scale, axis=axis),
        color=_by_model(),
    )  # fmt: skip
    return diagonal + dots


def errors_over_batch() -> Any:
    """Error of each run's prediction in percent; data set ``fit``."""
    return _errors("fit", batch_axis(), _by_model())


def errors_by_row() -> Any:
    """The same by row of the training file, where no runs are given; data set ``residuals``."""
    x = alt.X("row:Q", title="row of the training runs", axis=alt.Axis(grid=False))
    return _errors("residuals", x, alt.value(BLUE))


def _errors(data: str, x: alt.X, colour: Any) -> Any:
    zero = alt.Chart(alt.Data(values=[{"zero": 0}])).mark_rule(color=MUTED).encode(y="zero:Q")  # type: ignore[no-untyped-call]
    title = "predicted against measured (%)"
    dots = named(data).mark_point(filled=True, size=36).encode(
        x=x, y=alt.Y("error_pct:Q", title=title, axis=alt.Axis(tickCount=5)), color=colour
    )  # fmt: skip
    return zero + dots


def _by_model() -> alt.Color:
    legend = alt.Legend(orient="bottom", columns=1, labelLimit=300)
    return alt.Color("model:N", title=None, legend=legend, scale=alt.Scale(range=list(PALETTE)))
