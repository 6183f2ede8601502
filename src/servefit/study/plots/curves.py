"""Figs. 1 and 2: throughput and latency over mean batch, with knee, plateau and memory limit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from servefit.figures import PALETTE
from servefit.study.bench import Bench
from servefit.study.curves import at, landmarks
from servefit.study.derived import first_known, short_name
from servefit.study.plots import (
    BATCH_TITLE,
    E2E_TITLE,
    THROUGHPUT_TITLE,
    Figure,
    batch_axis,
    chart_of,
    legend_below,
)

#: Lines that one panel can show and still be read.
MOST_LINES = len(PALETTE)
MOST_PANELS = 4
KNEE, PLATEAU, LIMIT = "knee", "plateau (95 %)", "KV cache full"
MARKS = (KNEE, PLATEAU, LIMIT)

Rows = list[dict[str, Any]]


def by_model(bench: Bench) -> Figure | None:
    """Fig. 1: one curve of each model, at lengths that most models share."""
    frame = _main_series(bench)
    lengths = Counter(
        (r["input_length"], r["output_length"])
        for r in frame.unique(["model", "input_length", "output_length"]).to_dicts()
    )
    if not lengths:
        return None
    most = max(lengths.values())
    shared = sorted((o, i) for (i, o), count in lengths.items() if count == most)
    output, prompt = shared[len(shared) // 2]
    chosen = frame.filter((pl.col("input_length") == prompt) & (pl.col("output_length") == output))
    points, marks, left_out = _curves(chosen, "model", short_name)
    if not points:
        return None
    chart = alt.hconcat(
        _panel(points, marks, "tokens_per_s", THROUGHPUT_TITLE, "model"),
        _panel(points, marks, "e2e_s", E2E_TITLE, "model"),
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


def by_length(bench: Bench) -> Figure | None:
    """Fig. 2: for each model the curves of its lengths."""
    frame = _main_series(bench)
    models = _largest_first(frame)[:MOST_PANELS][::-1]
    frame = frame.filter(pl.col("model").is_in(models))
    counts = frame.group_by("model").agg(pl.struct("input_length", "output_length").n_unique())
    if counts.is_empty():
        return None
    columns, left_out = [], ""
    for model in models:
        own = frame.filter(pl.col("model") == model)
        points, marks, dropped = _curves(own, "lengths", str)
        left_out = left_out or dropped
        rows = [
            _panel(points, marks, name, title, "lengths", width=185, height=150)
            for name, title in (("tokens_per_s", THROUGHPUT_TITLE), ("e2e_s", E2E_TITLE))
        ]
        columns.append(alt.vconcat(*rows, title=short_name(model), spacing=10))
    return Figure(
        "figure_02_lengths",
        "Throughput and latency over mean batch, by input + output length (Fig. 2)",
        f"Lengths are input + output tokens. Marks as in Fig. 1.{left_out}",
        alt.hconcat(*columns, spacing=18),
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


def _curves(frame: pl.DataFrame, key: str, name: Any) -> tuple[Rows, Rows, str]:
    """Points and landmarks of each curve, and what had to be left out."""
    points: Rows = []
    marks: Rows = []
    left = ""
    labels = frame.sort("output_length", "input_length")["curve"].unique(maintain_order=True)
    if len(labels) > MOST_LINES:
        left = f" {len(labels) - MOST_LINES} more curves are not drawn."
    for label in labels.to_list()[:MOST_LINES]:
        own = frame.filter(pl.col("curve") == label)
        # Repeats are averaged; caps beyond what ran at once fall together.
        own = own.group_by("cap").agg(
            pl.col("batch", "tokens_per_s", "e2e_s").mean(),
            pl.col("preempted").max(),
            pl.col("model").first(),
            pl.col("input_tokens", "output_tokens").mean(),
        )
        own = own.sort("batch")
        first = own.row(0, named=True)
        lengths = f"{first['input_tokens']:.0f} + {first['output_tokens']:.0f}"
        line = name(first["model"]) if key == "model" else lengths
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
    *,
    width: int = 300,
    height: int = 220,
) -> Any:
    """Lines of one quantity, with its landmarks."""
    order = list(dict.fromkeys(p[key] for p in points))
    colour = alt.Color(
        f"{key}:N",
        title=None,
        sort=order,
        scale=alt.Scale(domain=order, range=list(PALETTE[: len(order)])),
        legend=legend_below(columns=3 if width < 250 else 4, symbolType="stroke"),
    )
    y = alt.Y(f"{field}:Q", title=title, axis=alt.Axis(format="~s", tickCount=5))
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
    def span(column: str) -> str:
        values = sorted({f"{value:.0f}" for value in frame[column].to_list()}, key=float)
        return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return f"{span('input_tokens')} input and {span('output_tokens')} output tokens"
