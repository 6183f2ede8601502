"""Figs. 12 and 13 and the profiling economy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from servefit.figures import PALETTE, chart_of
from servefit.study.economy import Summary
from servefit.study.plots import (
    Figure,
    grid_of,
    law_scale,
    legend_below,
    log_axis,
    panel_title,
)
from servefit.study.settings import BcaPlan
from servefit.study.tables import Table

#: Targets that Fig. 12 has room for.
MOST_TARGETS = 2


def sensitivity(plan: BcaPlan, table: Table, targets: Sequence[str]) -> Figure | None:
    """Fig. 12: throughput kept and KV cache saved over the SLO multiple and epsilon."""
    law = plan.laws[0]
    maps, violated = [], False
    for target in targets[:MOST_TARGETS]:
        rows = [
            dict(r)
            for r in table.rows
            if (r["target"], r["law"], r["rule"]) == (target, law, "tolerance")
        ]
        most = max((r.get("saved_gib") or 0.0 for r in rows), default=0.0) or 1.0
        for row in rows:
            broken = (row.get("slo_violation_pct") or 0.0) > 0.5
            violated = violated or broken
            row["kept"] = _cell(row, "retained_pct", ".1f", broken)
            row["saved"] = _cell(row, "saved_gib", ".1f" if most >= 1 else ".2g", broken)
        maps.append(
            alt.hconcat(
                _map(rows, "retained_pct", "kept", "throughput kept (% of peak)", "viridis", 100),
                _map(rows, "saved_gib", "saved", "KV cache saved (GiB)", "cividis", most),
                title=panel_title(target),
                spacing=20,
            ).resolve_scale(color="independent")
        )
    if not maps:
        return None
    marked = " !: the measured E2E breaks the SLO there." if violated else ""
    return Figure(
        "figure_12_sensitivity",
        "Sensitivity to the SLO and to epsilon (Fig. 12)",
        f"Decisions of {law} by the tolerance rule, trained without the curve; arrows name the "
        f"chosen cap, numbers are measured at it.{marked}",
        alt.vconcat(*maps, spacing=22),
    )


def _cell(row: dict[str, Any], field: str, form: str, broken: bool) -> str:
    if row.get("cap") is None:
        return "none"
    return f"{row[field]:{form}}\n→ {row['cap']}{' !' if broken else ''}"


def _map(
    rows: list[dict[str, Any]], field: str, text: str, title: str, scheme: Any, end: float
) -> Any:
    """One heat map; colours run from 0 to ``end``."""
    multiples = sorted({r["slo_multiple"] for r in rows}, reverse=True)
    middle = end / 2
    base = chart_of(rows).encode(
        x=alt.X("epsilon:O", title="epsilon", axis=alt.Axis(labelAngle=0, domain=False)),
        y=alt.Y(
            "slo_multiple:O",
            title="SLO (x E2E at reference)",
            sort=multiples,
            axis=alt.Axis(domain=False),
        ),
    )
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(
        color=alt.condition(
            f"isValid(datum.{field})",
            alt.Color(
                f"{field}:Q",
                scale=alt.Scale(scheme=scheme, domain=[0, end]),
                legend=None,
            ),
            alt.value("#EEEEEE"),
        ),
        tooltip=["slo_multiple:Q", "epsilon:Q", "cap:Q", "full_profile_cap:Q", f"{field}:Q"],
    )
    numbers = base.mark_text(fontSize=10.5, lineBreak="\n", lineHeight=12, dy=-5).encode(
        text=f"{text}:N",
        color=alt.condition(
            f"isValid(datum.{field}) && datum.{field} < {middle}",
            alt.value("white"),
            alt.value("black"),
        ),
    )
    heading = alt.TitleParams(title, fontSize=11, fontWeight="normal", offset=6)
    return (cells + numbers).properties(width=alt.Step(66), height=alt.Step(36), title=heading)


PARTS = (
    ("weights_gib", "weights"),
    ("kv_gib", "KV cache needed"),
    ("freed_gib", "freed"),
    ("other_gib", "other (assumed)"),
    ("outside_gib", "outside the engine"),
)


def memory(table: Table, law: str, curves: Sequence[str]) -> Figure | None:
    """Fig. 13: how one GPU's memory splits at the advised cap of some curves."""
    own = [r for name in curves for r in table.rows if (r["law"], r["curve"]) == (law, name)]
    if not own:
        return None
    plain = {r["curve"]: str(r["curve"]).partition(" (")[0] for r in own}
    names = plain if len(set(plain.values())) == len(plain) else {c: c for c in plain}
    rows = [
        {
            "curve": f"{names[r['curve']]}, cap {r['cap']}",
            "part": label,
            "gib": max(r[key] or 0.0, 0.0),
            "order": order,
        }
        for r in own
        for order, (key, label) in enumerate(PARTS)
    ]
    labels = [label for _, label in PARTS]
    base = chart_of(rows).encode(
        y=alt.Y(
            "curve:N",
            title=None,
            sort=list(dict.fromkeys(str(r["curve"]) for r in rows)),
            axis=alt.Axis(labelLimit=360),
        ),
    )
    stacked = alt.X("gib:Q", title="memory of one GPU (GiB)", stack="zero")
    bars = base.mark_bar(stroke="white", strokeWidth=0.6).encode(
        x=stacked,
        order=alt.Order("order:Q"),
        color=alt.Color(
            "part:N",
            title=None,
            sort=labels,
            scale=alt.Scale(
                domain=labels, range=[PALETTE[0], PALETTE[1], "#CFE8DF", "#B8B8B8", "#E4E4E4"]
            ),
            legend=legend_below(columns=3),
        ),
        tooltip=["curve:N", "part:N", alt.Tooltip("gib:Q", format=".2f")],
    )
    return Figure(
        "figure_13_memory",
        "One GPU's memory at the advised cap (Fig. 13)",
        f"Advised by {law}. {table.notes[0] if table.notes else ''}",
        bars.properties(width=330, height=alt.Step(30)),
    )


CHOICES = ("random", "spread", "cheapest")


def economy(summaries: Sequence[Summary], laws: Sequence[str]) -> Figure | None:
    """Accuracy and decision quality against points and GPU-seconds, from one point to all."""
    rows = [
        {
            "law": s.law,
            "choice": choice,
            "line": f"{s.law}, {choice}",
            "points": s.points,
            "gpu_s": s.gpu_s if s.gpu_s > 0 else None,
            "low": s.mape_pct[0],
            "mape": s.mape_pct[1],
            "high": s.mape_pct[2],
            "good": s.good_pct,
            "all": s.choice == "all",
        }
        for s in summaries
        # Every choice ends at all points, where they are one.
        for choice in (CHOICES if s.choice == "all" else (s.choice,))
        if choice in CHOICES and s.mape_pct is not None
    ]
    # A choice that was not made (cheapest, where no time is known) has no end to reach.
    made = {r["line"] for r in rows if not r["all"]}
    rows = [r for r in rows if r["line"] in made]
    if not rows:
        return None
    columns = [("points", "profiled points"), ("gpu_s", "GPU-seconds of profiling")]
    quantities = [("mape", "throughput MAPE (%)"), ("good", "good decisions (%)")]
    panels = [
        [
            _economy_panel(rows, laws, x, x_title, y, y_title, band=x == "points" and y == "mape")
            for x, x_title in columns
            if any(r[x] for r in rows)
        ]
        for y, y_title in quantities
        if any(r[y] is not None for r in rows)
    ]
    return Figure(
        "figure_economy",
        "Profiling economy: accuracy and decisions against what was profiled",
        "Medians (decisions: means) over random choices of points, with the band from the 10th to "
        "the 90th percentile; two designed choices beside them. Every run that was not chosen is "
        "predicted; open circles are all points, where the error is that on the runs trained on.",
        grid_of(*panels),
    )


#: Dash of each kind of choice.
_DASHES = {"random": [1, 0], "spread": [7, 3], "cheapest": [2, 2]}


def _economy_panel(
    rows: list[dict[str, Any]],
    laws: Sequence[str],
    x: str,
    x_title: str,
    y: str,
    y_title: str,
    *,
    band: bool = False,
) -> Any:
    own = [r for r in rows if r[x] and r[y] is not None]
    shown = [law for law in laws if any(r["law"] == law for r in rows)]
    lines = [f"{law}, {choice}" for law in shown for choice in CHOICES]
    colours = law_scale(shown).range
    if x == "points":
        horizontal = alt.X(
            "points:Q",
            title=x_title,
            scale=alt.Scale(type="log", base=2, nice=False, padding=6),
            axis=alt.Axis(values=[2**k for k in range(12)]),
        )
    else:
        horizontal = log_axis(x_title, [r[x] for r in own], alt.X, x)
    if y == "mape":
        errors = [r[key] for r in own for key in ("low", "mape", "high")]
        vertical, low = (log_axis(y_title, errors, field=field) for field in ("mape", "low"))
    else:
        vertical = alt.Y(f"{y}:Q", title=y_title, scale=alt.Scale(domain=[0, 100]))
    legend = legend_below(columns=3, symbolType="stroke", symbolSize=400, symbolStrokeWidth=2)
    colour = alt.Color(
        "line:N",
        title=None,
        sort=lines,
        scale=alt.Scale(domain=lines, range=[c for c in colours for _ in CHOICES]),
        legend=legend,
    )
    dash = alt.StrokeDash(
        "line:N",
        title=None,
        sort=lines,
        scale=alt.Scale(domain=lines, range=[_DASHES[c] for _ in shown for c in CHOICES]),
        legend=legend,
    )
    tooltip = ["law:N", "choice:N", "points:Q", "gpu_s:Q", "mape:Q", "good:Q"]
    base = chart_of(own)
    drawn = base.mark_line(strokeWidth=1.5).encode(
        x=horizontal, y=vertical, color=colour, strokeDash=dash, order=alt.Order(f"{x}:Q")
    )
    dots = base.transform_filter("!datum.all").mark_circle(size=22, opacity=1)
    ends = base.transform_filter("datum.all").mark_point(size=30, opacity=1, fill="white")
    marks = [
        mark.encode(x=horizontal, y=vertical, color=colour, tooltip=tooltip)
        for mark in (dots, ends)
    ]
    chart: Any = alt.layer(drawn, *marks)
    if band:
        area = (
            base.transform_filter("datum.choice == 'random'")
            .mark_area(opacity=0.18)
            .encode(x=horizontal, y=low, y2="high:Q", color=colour)
        )
        chart = area + chart
    return chart.properties(width=250, height=190)
