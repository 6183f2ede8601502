"""Figs. 1 and 2: throughput and latency over mean batch, with knee, plateau and memory limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from servefit.figures import chart_of
from servefit.study.bench import Bench
from servefit.study.curves import at, landmarks
from servefit.study.derived import first_known, short_name
from servefit.study.plots import (
    BATCH_TITLE,
    E2E_TITLE,
    LINE_COLOURS,
    THROUGHPUT_TITLE,
    Figure,
    amount_axis,
    batch_axis,
    grid_of,
    legend_below,
    panel_title,
)

#: Lines that one panel can show and still be read.
MOST_LINES = len(LINE_COLOURS)
MOST_PANELS = 4
KNEE, PLATEAU, LIMIT = "knee", "plateau (95 %)", "KV cache full"
MARKS = (KNEE, PLATEAU, LIMIT)

_QUANTITIES = (("tokens_per_s", THROUGHPUT_TITLE), ("e2e_s", E2E_TITLE))

Rows = list[dict[str, Any]]


def by_model(bench: Bench) -> Figure | None:
    """Fig. 1: one curve of each model, at lengths that most models share."""
    chosen = one_curve_a_model(bench)
    names = {m: short_name(m) for m in chosen["model"].unique().to_list()}
    points, marks, left_out = _curves(chosen, "model", names)
    if not points:
        return None
    order = list(dict.fromkeys(p["model"] for p in points))
    chart = alt.hconcat(
        *(_panel(points, marks, *quantity, "model", order) for quantity in _QUANTITIES),
        spacing=24,
    )
    lengths_text = _lengths_text(chosen)
    return Figure(
        "figure_01_models",
        "Throughput and latency over mean batch, by model (Fig. 1)",
        f"{lengths_text}. Knee: from here on doubling the batch brings less than 41 % more "
        "throughput. Plateau: 95 % of the largest throughput measured. KV cache full: the first "
        f"cap at which the engine ran out of it.{left_out}",
        chart,
    )


def one_curve_a_model(bench: Bench) -> pl.DataFrame:
    """Rows of one curve of each model, at the middle of the lengths that most models share."""
    frame = _main_series(bench)
    pairs = frame.select("model", "input_length", "output_length").unique()
    lengths = Counter((r["output_length"], r["input_length"]) for r in pairs.to_dicts())
    if not lengths:
        return frame
    most = max(lengths.values())
    shared = sorted(pair for pair, count in lengths.items() if count == most)
    output, prompt = shared[len(shared) // 2]
    return frame.filter(
        (pl.col("input_length") == prompt) & (pl.col("output_length") == output)
    ).sort("model_rank", descending=True)


def by_length(bench: Bench) -> Figure | None:
    """Fig. 2: for each model the curves of its lengths."""
    frame = _main_series(bench)
    models = _largest_first(frame)[:MOST_PANELS][::-1]
    frame = frame.filter(pl.col("model").is_in(models))
    if frame.is_empty():
        return None
    names = _length_names(frame)
    order = list(dict.fromkeys(names.values()))
    rows: list[list[Any]] = [[], []]
    left_out = ""
    for model in models:
        own = frame.filter(pl.col("model") == model)
        points, marks, dropped = _curves(own, "lengths", names)
        left_out = left_out or dropped
        for row, (field, title) in zip(rows, _QUANTITIES, strict=True):
            panel = _panel(points, marks, field, title, "lengths", order, width=185, height=150)
            top = {"title": panel_title(short_name(model))} if row is rows[0] else {}
            row.append(panel.properties(**top))
    return Figure(
        "figure_02_lengths",
        "Throughput and latency over mean batch, by input + output length (Fig. 2)",
        f"Lengths are input + output tokens. Marks as in Fig. 1.{left_out}",
        grid_of(*rows),
    )


def _main_series(bench: Bench) -> pl.DataFrame:
    """The rows of the series with most curves, then most rows; preempted ones included."""
    frame = bench.everything.frame.with_columns(
        batch=pl.Series(
            first_known(
                bench.everything.numbers("mean_batch"),
                bench.everything.numbers("batch"),
                bench.everything.numbers("cap"),
            )
        ),
        tokens_per_s=pl.Series(bench.everything.numbers("total_tokens_per_s")),
        e2e_s=pl.Series(bench.everything.numbers("e2e_mean_s")),
    )
    tokens = pl.col("batch") * (pl.col("input_tokens") + pl.col("output_tokens"))
    # NaN is no null: T and E2E imply each other (Eq. 6).
    frame = frame.with_columns(
        e2e_s=pl.col("e2e_s").fill_nan(None).fill_null(tokens / pl.col("tokens_per_s")),
        tokens_per_s=pl.col("tokens_per_s").fill_nan(None).fill_null(tokens / pl.col("e2e_s")),
    ).filter(pl.col("tokens_per_s").is_finite() & pl.col("e2e_s").is_finite())
    if frame.is_empty():
        return frame
    sizes = frame.group_by("series").agg(curves=pl.col("curve").n_unique(), rows=pl.len())
    best = sizes.sort(["curves", "rows", "series"], descending=[True, True, False])["series"][0]
    return frame.filter(pl.col("series") == best)


def _largest_first(frame: pl.DataFrame) -> list[str]:
    ranks = frame.select("model", "model_rank").unique().sort("model_rank")
    return [str(name) for name in ranks["model"].to_list()]


def _length_names(frame: pl.DataFrame) -> dict[tuple[float, float], str]:
    """``242-250 + 260`` of each pair of lengths, shortest output first."""
    names = {}
    for key, own in frame.sort("output_length", "input_length").group_by(
        "input_length", "output_length", maintain_order=True
    ):
        names[float(key[0]), float(key[1])] = (
            f"{_span(own, 'input_tokens', '-')} + {_span(own, 'output_tokens', '-')}"
        )
    return names


def _curves(frame: pl.DataFrame, key: str, names: Mapping[Any, str]) -> tuple[Rows, Rows, str]:
    """Points and landmarks of each curve, and what had to be left out.

    ``names`` has the lines' names, by model or by pair of length classes.
    """
    points: Rows = []
    marks: Rows = []
    left = ""
    by = ["output_length", "input_length", "model_rank"]
    labels = frame.sort(by, descending=[False, False, True])["curve"].unique(maintain_order=True)
    if len(labels) > MOST_LINES:
        left = f" {len(labels) - MOST_LINES} more curves are not drawn."
    for label in labels.to_list()[:MOST_LINES]:
        own = frame.filter(pl.col("curve") == label)
        # Repeats are averaged; caps beyond what ran at once fall together.
        own = own.group_by("cap").agg(
            pl.col("batch", "tokens_per_s", "e2e_s").mean(),
            pl.col("preempted").max(),
            pl.col("model", "input_length", "output_length").first(),
        )
        own = own.sort("batch")
        first = own.row(0, named=True)
        lengths = (first["input_length"], first["output_length"])
        line = names[first["model"] if key == "model" else lengths]
        for row in own.iter_rows(named=True):
            points.append(
                {
                    key: line,
                    "batch": row["batch"],
                    "cap": row["cap"],
                    "tokens_per_s": row["tokens_per_s"],
                    "e2e_s": row["e2e_s"],
                }
            )
        marks += _marks(own, {key: line})
    return points, marks, left


def _marks(own: pl.DataFrame, label: dict[str, Any]) -> Rows:
    batch, throughput, e2e = (own[c].to_numpy() for c in ("batch", "tokens_per_s", "e2e_s"))
    preempted = own["preempted"].cast(pl.Float64).to_numpy()
    keep = np.concatenate([[True], np.diff(batch) > 1e-9 * batch[1:]])
    found = landmarks(batch[keep], throughput[keep], preempted[keep])
    marks = []
    if found.knee is not None:
        marks.append(
            {
                "mark": KNEE,
                "batch": found.knee,
                "tokens_per_s": at(found.knee, batch[keep], throughput[keep]),
                "e2e_s": at(found.knee, batch[keep], e2e[keep]),
            }
        )
    for kind, index in ((PLATEAU, found.plateau), (LIMIT, found.memory_limit)):
        if index is not None:
            marks.append(
                {
                    "mark": kind,
                    "batch": float(batch[keep][index]),
                    "tokens_per_s": float(throughput[keep][index]),
                    "e2e_s": float(e2e[keep][index]),
                }
            )
    return [{**label, **mark} for mark in marks]


def _panel(
    points: Rows,
    marks: Rows,
    field: str,
    title: str,
    key: str,
    order: Sequence[str],
    *,
    width: int = 300,
    height: int = 220,
) -> Any:
    """Lines of one quantity, with its landmarks."""
    colour = alt.Color(
        f"{key}:N",
        title=None,
        sort=list(order),
        scale=alt.Scale(domain=list(order), range=list(LINE_COLOURS[: len(order)])),
        legend=legend_below(columns=3 if width < 250 else 4, symbolType="stroke"),
    )
    y = amount_axis(field, title)
    tooltip = [
        alt.Tooltip(f"{key}:N"),
        alt.Tooltip("cap:Q"),
        alt.Tooltip("batch:Q", format=".4~g", title=BATCH_TITLE),
        alt.Tooltip(f"{field}:Q", format=".4~g", title=title),
    ]
    lines = (
        chart_of(points)
        .mark_line(point=alt.OverlayMarkDef(size=16), strokeWidth=1.4)
        .encode(x=batch_axis(), y=y, color=colour, tooltip=tooltip)
    )
    symbols = (
        chart_of(marks)
        .mark_point(size=70, strokeWidth=1.6, filled=False, color="#000000")
        .encode(
            x=batch_axis(),
            y=y,
            shape=alt.Shape(
                "mark:N",
                title=None,
                scale=alt.Scale(domain=list(MARKS), range=["diamond", "triangle-up", "square"]),
                legend=legend_below(columns=3),
            ),
        )
    )
    return (lines + symbols).properties(width=width, height=height)


def _lengths_text(frame: pl.DataFrame) -> str:
    inputs, outputs = (_span(frame, c, " to ") for c in ("input_tokens", "output_tokens"))
    return f"{inputs} input and {outputs} output tokens"


def _span(frame: pl.DataFrame, column: str, dash: str) -> str:
    """``242`` or ``242-250``: the rounded values of a column."""
    values = sorted({f"{value:.0f}" for value in frame[column].to_list()}, key=float)
    return values[0] if len(values) == 1 else f"{values[0]}{dash}{values[-1]}"
