"""Table VI: the profiling that prediction replaces, in points and in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from servefit.points import BoolArray, FloatArray
from servefit.study import published
from servefit.study.bench import Bench
from servefit.study.splits import Split
from servefit.study.tables import Column, Table


def run_seconds(bench: Bench) -> FloatArray:
    """GPU-seconds that measuring each row took: duration (else E2E of a static batch) x GPUs."""
    duration = bench.table.numbers("duration_s")
    static = np.isfinite(bench.table.numbers("batch"))
    e2e = np.where(static, bench.table.numbers("e2e_mean_s"), np.nan)
    seconds = np.where(np.isfinite(duration), duration, e2e)
    return np.asarray(seconds * bench.table.numbers("tp"))


def savings_table(bench: Bench, splits: Mapping[str, Split]) -> Table:
    """Table VI: points and profiling time that prediction replaces."""
    seconds = run_seconds(bench)
    rows, shares = [], []
    for name, split in splits.items():
        paper = published.TABLE_VI.get(split.setting.paper or "")
        row: dict[str, Any] = {
            "setting": name + (" *" if split.setting.variant else ""),
            "paper_points_saved_pct": paper and paper[2],
            "paper_time_saved_pct": paper and paper[3],
        }
        if split.reason is None:
            profiled, predicted = int(split.train.sum()), int(split.test.sum())
            spent, saved = _total(seconds, split.train), _total(seconds, split.test)
            known = spent is not None and saved is not None
            share = 100 * saved / (spent + saved) if known else None  # type: ignore[operator]
            row |= {
                "profiled": profiled,
                "predicted": predicted,
                "points_saved_pct": 100 * predicted / (profiled + predicted),
                "gpu_s_spent": spent,
                "gpu_s_saved": saved,
                "time_saved_pct": share,
            }
            if paper:
                row["reason"] = _saving_reason(paper, row["points_saved_pct"], share)
            if share is not None and not split.setting.variant:
                shares.append(share)
        rows.append(row)
    notes = [
        "Time is the measured duration of the runs, ramp-up and drain included, times GPUs",
        published.OTHER_RUNS,
    ]
    if shares:
        notes.append(
            f"Mean time saved over settings that are no variant: {np.mean(shares):.1f} % "
            f"(the paper prints {published.MEAN_TIME_SAVED} %)"
        )
    notes += [
        f"{name}: does not exist on these runs: {split.reason}"
        for name, split in splits.items()
        if split.reason
    ]
    columns = (
        Column("setting", "setting"),
        Column("profiled", "points profiled", 0),
        Column("predicted", "predicted", 0),
        Column("points_saved_pct", "points saved, %", 1),
        Column("gpu_s_spent", "GPU-s spent", 0),
        Column("gpu_s_saved", "GPU-s saved", 0),
        Column("time_saved_pct", "time saved, %", 1),
        Column("paper_points_saved_pct", "paper: points", 1, ""),
        Column("paper_time_saved_pct", "paper: time", 1, ""),
        Column("reason", "known reason of the difference", missing=""),
    )
    title = "Profiling that prediction replaces (Table VI)"
    return Table("table_6_savings", title, columns, tuple(rows), tuple(notes))


def _saving_reason(
    paper: tuple[int, int, float, float], points_pct: float, time_pct: float | None
) -> str:
    """Which points there are, and how long one of them takes, behind both shares.

    A predicted run takes (s / (1 - s)) / (p / (1 - p)) times as long as one profiled, where s and p
    are the shares of time and of points saved.
    """
    profiled, predicted, paper_points_pct, paper_time_pct = paper

    def odds(share_pct: float) -> float:
        return share_pct / (100 - share_pct)

    reason = f"the paper profiles {profiled} points and predicts {predicted}"
    if time_pct is not None and time_pct < 100:
        ours = odds(time_pct) / odds(points_pct)
        theirs = odds(paper_time_pct) / odds(paper_points_pct)
        reason += (
            f"; a predicted run takes {ours:.2g} times as long as a profiled one, "
            f"the paper's {theirs:.2g}"
        )
    return reason


def _total(seconds: FloatArray, mask: BoolArray) -> float | None:
    """Sum over some rows; ``None`` where one is unknown."""
    total = float(seconds[mask].sum())
    return total if np.isfinite(total) else None
