"""Figs. 9 to 11: predictions beside what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import polars as pl

from servefit.evaluation import RowScore, Score
from servefit.figures import BAND, chart_of
from servefit.study.accuracy import Accuracy
from servefit.study.bench import Bench
from servefit.study.derived import first_known
from servefit.study.plots import (
    BATCH_TITLE,
    E2E_TITLE,
    LINE_COLOURS,
    THROUGHPUT_TITLE,
    TRAINED,
    Figure,
    batch_axis,
    grid_of,
    law_scale,
    legend_below,
    log_axis,
    log_ticks,
    panel_title,
)
from servefit.study.splits import Split

Rows = list[dict[str, Any]]
#: Curves that one panel can show and still be read.
MOST_CURVES = 6
QUANTITIES = (("tokens_per_s", THROUGHPUT_TITLE), ("e2e_s", E2E_TITLE))


def held_out(bench: Bench, accuracy: Accuracy, names: Sequence[str], law: str) -> Figure | None:
    """Fig. 9: training points grey, held-out points against one law's prediction."""
    rows: list[list[Any]] = [[], []]
    captions = []
    scores = {name: accuracy.scores[name].get(law) for name in names}
    seen = {name: s for name, s in scores.items() if s and s.rows}
    absent = [name for name in names if name not in seen]
    tests = {name: _tested(bench, score) for name, score in seen.items()}
    # One colour a curve in every panel; curves beyond the palette are not drawn.
    curves = Counter(r["curve"] for tested in tests.values() for r in tested)
    shown = [curve for curve, _ in curves.most_common(MOST_CURVES)]
    for name, score in seen.items():
        trained = _trained(bench, accuracy.splits[name])
        tested = [r for r in tests[name] if r["curve"] in shown]
        for row, quantity in zip(rows, QUANTITIES, strict=True):
            panel = _against(trained, tested, shown, *quantity, columns=len(seen))
            top = {"title": panel_title(name)} if row is rows[0] else {}
            row.append(panel.properties(**top))
        captions.append(
            f"{name} {_percent(score.throughput_mape_pct)} and {_percent(score.e2e_mape_pct)}"
        )
    if not seen:
        return None
    missing = f" Not on these runs: {', '.join(absent)}." if absent else ""
    if len(curves) > len(shown):
        missing += f" {len(curves) - len(shown)} more held-out curves are not drawn."
    return Figure(
        "figure_09_held_out",
        f"Training and held-out runs against {law} (Fig. 9)",
        f"Grey: trained on. Circles: held out, as measured. Lines: predicted by {law}. MAPE on "
        f"throughput and E2E: {'; '.join(captions)}.{missing}",
        grid_of(*rows),
    )


def estimators(bench: Bench, accuracy: Accuracy, name: str) -> Figure | None:
    """Fig. 10: every law on one held-out curve."""
    scores = {law: s for law, s in accuracy.scores[name].items() if s.rows}
    if not scores:
        return None
    tested = {law: _tested(bench, score) for law, score in scores.items()}
    first = next(iter(tested.values()))
    curve = Counter(r["curve"] for r in first).most_common(1)[0][0]
    lines = [{"law": law, **r} for law, rows in tested.items() for r in rows if r["curve"] == curve]
    measured = [r for r in first if r["curve"] == curve]
    panels = [_by_law(lines, measured, list(scores), *quantity) for quantity in QUANTITIES]
    return Figure(
        "figure_10_estimators",
        f"Every law on a held-out curve (Fig. 10): {curve}",
        f"Setting {name}. Points: measured. Lines: predicted from the setting's training runs.",
        alt.hconcat(*panels, spacing=24, title=panel_title(curve)),
    )


def carried(
    bench: Bench, accuracy: Accuracy, names: Sequence[str], laws: Sequence[str]
) -> Figure | None:
    """Fig. 11: predicted against measured throughput where the fit had seen nothing alike."""
    panels, absent, captions = [], [], []
    for name in names:
        scores = {law: accuracy.scores[name].get(law) for law in laws}
        seen: dict[str, Score] = {law: s for law, s in scores.items() if s and s.rows}
        if not seen:
            absent.append(name)
            continue
        panels.append(_parity(bench, seen, name))
        captions.append(
            f"{name}: "
            + ", ".join(f"{law} {_percent(s.throughput_mape_pct)}" for law, s in seen.items())
        )
    if not panels:
        return None
    missing = f" Not on these runs: {', '.join(absent)}." if absent else ""
    return Figure(
        "figure_11_carried",
        "Fits carried to unseen architectures and tensor parallelism (Fig. 11)",
        f"The line is equality, the band 10 % about it. Throughput MAPE: {'; '.join(captions)}."
        f"{missing}",
        alt.hconcat(*panels, spacing=24),
    )


def _tested(bench: Bench, score: Score) -> Rows:
    """Measured and predicted values of the tested runs, with their curve."""
    curves = bench.table.frame["curve"].to_list()
    parallel = bench.table.numbers("tp")
    return [
        {
            "curve": curves[row.row],
            "tp": f"TP {parallel[row.row]:g}",
            "batch": row.batch,
            "tokens_per_s": row.measured_tokens_per_s,
            "predicted_tokens_per_s": row.predicted_tokens_per_s,
            "e2e_s": row.measured_e2e_s,
            "predicted_e2e_s": row.predicted_e2e_s,
        }
        for row in sorted((r for r in score.rows if isinstance(r, RowScore)), key=_by_batch)
    ]


def _by_batch(row: RowScore) -> float:
    return row.batch


def _trained(bench: Bench, split: Split) -> Rows:
    table = bench.table.filter(split.train)
    batch = first_known(table.numbers("mean_batch"), table.numbers("batch"), table.numbers("cap"))
    frame = pl.DataFrame(
        {
            "batch": batch,
            "tokens_per_s": table.numbers("total_tokens_per_s"),
            "e2e_s": table.numbers("e2e_mean_s"),
        },
        nan_to_null=True,
    )
    return frame.to_dicts()


def _against(
    trained: Rows, tested: Rows, curves: Sequence[str], field: str, title: str, *, columns: int
) -> Any:
    """One quantity of one setting: grey training points, held-out points and prediction."""
    colour = alt.Color(
        "curve:N",
        title=None,
        sort=list(curves),
        scale=alt.Scale(domain=list(curves), range=list(LINE_COLOURS[: len(curves)])),
        legend=legend_below(columns=columns, symbolType="stroke"),
    )
    values = [
        r[key] for r in (*trained, *tested) for key in (field, f"predicted_{field}") if key in r
    ]
    grey = (
        chart_of(trained)
        .mark_circle(size=18, color=TRAINED, opacity=0.6)
        .encode(x=batch_axis(), y=log_axis(title, values, field=field))
    )
    base = chart_of(tested)
    points = base.mark_circle(size=34, opacity=1).encode(
        x=batch_axis(),
        y=log_axis(title, values, field=field),
        color=colour,
        tooltip=_tooltip(field),
    )
    lines = base.mark_line(strokeWidth=1.4).encode(
        x=batch_axis(), y=log_axis(title, values, field=f"predicted_{field}"), color=colour
    )
    return (grey + lines + points).properties(width=180, height=150)


def _by_law(lines: Rows, measured: Rows, laws: Sequence[str], field: str, title: str) -> Any:
    legend = legend_below(columns=5, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2)
    values = [r[key] for r in lines for key in (field, f"predicted_{field}")]
    dashes = [[1, 0], [7, 2], [3, 2], [8, 2, 2, 2], [5, 2, 1, 2, 1, 2]]
    colour = alt.Color("law:N", title=None, sort=list(laws), scale=law_scale(laws), legend=legend)
    drawn = (
        chart_of(lines)
        .mark_line(strokeWidth=1.8)
        .encode(
            x=batch_axis(),
            y=log_axis(title, values, field=f"predicted_{field}"),
            color=colour,
            strokeDash=alt.StrokeDash(
                "law:N",
                title=None,
                sort=list(laws),
                scale=alt.Scale(domain=list(laws), range=dashes[: len(laws)]),
                legend=legend,
            ),
            tooltip=["law:N", *_tooltip(field)],
        )
    )
    points = (
        chart_of(measured)
        .mark_circle(size=44, color="#000000", opacity=1)
        .encode(x=batch_axis(), y=log_axis(title, values, field=field), tooltip=_tooltip(field))
    )
    return (drawn + points).properties(width=300, height=220)


def _parity(bench: Bench, scores: Mapping[str, Score], name: str) -> Any:
    rows = [{"law": law, **r} for law, score in scores.items() for r in _tested(bench, score)]
    values = [r[k] for r in rows for k in ("tokens_per_s", "predicted_tokens_per_s")]
    ends = [min(values) / 1.1, max(values) * 1.1]
    equality = [{"x": e, "y": e, "low": e / 1.1, "high": e * 1.1} for e in ends]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    axis = alt.Axis(format="~s", values=log_ticks(*ends))
    predicted = "predicted throughput (tokens/s)"
    x = alt.X("x:Q", scale=scale, axis=axis, title="measured throughput (tokens/s)")
    y = alt.Y("y:Q", scale=scale, axis=axis, title=predicted)
    line = chart_of(equality)
    band = line.mark_area(color=BAND, clip=True).encode(
        x=x, y=alt.Y("low:Q", scale=scale, title=predicted), y2="high:Q"
    )
    diagonal = line.mark_line(color="#444444", strokeWidth=1).encode(x=x, y=y)
    kinds = sorted({r["tp"] for r in rows})
    points = (
        chart_of(rows)
        .mark_point(size=26, strokeWidth=1.2)
        .encode(
            x=alt.X("tokens_per_s:Q", scale=scale, axis=axis),
            y=alt.Y("predicted_tokens_per_s:Q", scale=scale, axis=axis),
            color=alt.Color(
                "law:N",
                title=None,
                sort=list(scores),
                scale=law_scale(scores),
                legend=legend_below(symbolType="circle"),
            ),
            shape=alt.Shape("tp:N", title=None, legend=legend_below())
            if len(kinds) > 1
            else alt.value("circle"),
            tooltip=["law:N", "curve:N", *_tooltip("tokens_per_s")],
        )
    )
    return (band + diagonal + points).properties(width=300, height=260, title=panel_title(name))


def _tooltip(field: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("batch:Q", format=".4~g", title=BATCH_TITLE),
        alt.Tooltip(f"{field}:Q", format=".4~g", title="measured"),
        alt.Tooltip(f"predicted_{field}:Q", format=".4~g", title="predicted"),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"
