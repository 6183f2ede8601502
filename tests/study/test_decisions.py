from __future__ import annotations

from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np
import polars as pl
import pytest

from servefit.laws import get_law
from servefit.study import bca, bca_tables, economy, published
from servefit.study.bca import Measured
from servefit.study.bench import Bench
from servefit.study.curves import at, knee, landmarks
from servefit.study.plots import decisions as plots
from servefit.study.settings import BcaPlan, EconomyPlan, Target

from .conftest import CAPS, MODELS, e2e_s

PLAN = BcaPlan(
    laws=("step",),
    slo_multiples=(3, 1.5),
    epsilons=(0.1,),
    target=(
        Target(
            name="Longest output",
            where=("output_rank=1", "output_lengths=2.."),
            same=("series", "model", "input_length"),
            grow="output_length",
        ),
        Target(
            name="Largest model",
            where=("largest_model=true", "inner_output=true"),
            same=("series", "output_length"),
            grow="model",
        ),
    ),
)


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def curves(bench: Bench) -> dict[str, Measured]:
    return {
        label: bca.measured_curve_of(bench, label, rows, PLAN.reference_batch)
        for label, rows in bench.curves()
    }


def test_a_curve_is_measured_at_its_caps(curves: dict[str, Measured]) -> None:
    measured = curves["opt-1.3b 64+128"]
    assert measured.curve.cap.tolist() == list(CAPS)
    assert measured.reference_cap == 32
    assert measured.reference_s == pytest.approx(e2e_s(MODELS[2], 64, 128, 32))


def test_a_perfect_prediction_loses_nothing(curves: dict[str, Measured]) -> None:
    measured = curves["opt-1.3b 64+128"]
    for rule in bca.RULES:
        objective = measured.objective(1.5, rule, 0.1)
        result = bca.outcome(measured, measured.curve, objective)
        assert result.cap == result.full_cap
        assert (result.lost, result.violation) == (0.0, 0.0)


def test_an_optimistic_prediction_violates_the_slo_by_what_was_measured(
    curves: dict[str, Measured],
) -> None:
    measured = curves["opt-1.3b 64+128"]
    e2e = {"e2e": 0.5 * measured.curve.latency_s["e2e"]}
    optimistic = replace(measured.curve, latency_bound_s=e2e)
    objective = measured.objective(1.2, "tolerance", 0.0)
    result = bca.outcome(measured, optimistic, objective)
    assert result.cap is not None
    seconds = e2e_s(MODELS[2], 64, 128, result.cap)
    assert result.violation == pytest.approx(seconds / (1.2 * measured.reference_s) - 1)
    assert result.violation > 0
    assert result.lost is not None
    assert result.lost < 0


def test_nothing_feasible_is_no_decision(curves: dict[str, Measured]) -> None:
    measured = curves["opt-1.3b 64+128"]
    result = bca.outcome(measured, measured.curve, measured.objective(0.01, "tolerance", 0.1))
    assert (result.cap, result.full_cap, result.lost) == (None, None, None)


def test_training_curves_are_added_smallest_first(
    bench: Bench, curves: dict[str, Measured]
) -> None:
    grown, absent = bca.grow(bench, PLAN, curves, silent)
    assert absent == []
    by_target = [(g.measured.label, g.trained_on, g.num_points) for g in grown]
    assert ("opt-125m 64+128", ("opt-125m 64+32",), 8) in by_target
    assert ("opt-125m 64+128", ("opt-125m 64+32", "opt-125m 64+64"), 16) in by_target
    assert (
        "opt-1.3b 64+64",
        ("opt-125m 64+64", "opt-350m 64+64"),
        16,
    ) in by_target
    made = bca_tables.decisions_table(PLAN, grown, absent)
    assert len(made.rows) == 2 * len(grown)
    sensitivity = bca_tables.sensitivity_table(PLAN, grown)
    cell = next(r for r in sensitivity.rows if r["slo_multiple"] == 3)
    assert 0 < cell["retained_pct"] <= 100


def test_the_papers_map_stands_beside_ours(bench: Bench, curves: dict[str, Measured]) -> None:
    target = replace(PLAN.target[0], paper="OL-512")
    plan = replace(PLAN, laws=("slim",), epsilons=(0.1, 0.15), target=(target,))
    grown, _ = bca.grow(bench, plan, curves, silent)
    made = bca_tables.sensitivity_table(plan, grown)
    keys = ("paper_cap", "paper_retained_pct", "paper_saved_gib")
    printed = {
        (r["rule"], r["slo_multiple"], r["epsilon"]): tuple(r.get(k) for k in keys)
        for r in made.rows
    }
    assert printed["tolerance", 3, 0.1] == (128, 75.9, 36.1)
    assert printed["tolerance", 1.5, 0.1] == (64, 57.0, 42.2)
    # The paper prints neither this epsilon nor the other rule.
    assert printed["tolerance", 3, 0.15] == printed["efficiency", 3, 0.1] == (None, None, None)
    assert any("OL-512, of opt-1.3b with 2 input and 512 output" in n for n in made.notes)


def test_every_cell_of_the_papers_maps_has_its_numbers() -> None:
    for figure in published.FIGURE_12:
        for multiple in published.SLO_MULTIPLES:
            for epsilon in published.EPSILONS:
                cap = figure.cap(multiple, epsilon)
                assert cap in figure.retained_pct
                assert cap in figure.saved_gib


def test_the_papers_memory_stands_beside_ours(bench: Bench, curves: dict[str, Measured]) -> None:
    everything = np.ones(bench.table.frame.height, dtype=bool)
    fits = {"slim": bench.fit(get_law("slim"), everything)}
    made = bca_tables.memory_table(PLAN, curves, fits)
    printed = {str(r["curve"]).split()[0]: r.get("paper_kv_gib") for r in made.rows}
    assert printed == {"opt-125m": None, "opt-350m": 1.52, "opt-1.3b": 6.09}
    assert "The paper prints besides: opt-2.7b at cap 128 5.08 GiB of KV" in " ".join(made.notes)


def test_memory_splits_the_whole_gpu(bench: Bench, curves: dict[str, Measured]) -> None:
    everything = np.ones(bench.table.frame.height, dtype=bool)
    fits = {"slim": bench.fit(get_law("slim"), everything)}
    made = bca_tables.memory_table(PLAN, curves, fits)
    assert made.rows
    for row in made.rows:
        parts = ("weights_gib", "kv_gib", "freed_gib", "other_gib", "outside_gib")
        assert sum(row[p] for p in parts) == pytest.approx(64, rel=1e-6)


def test_an_engine_that_reserves_nothing_frees_nothing(bench: Bench) -> None:
    frame = bench.table.frame.with_columns(engine=pl.lit("ctranslate2"))
    other = replace(bench, table=replace(bench.table, frame=frame))
    label, rows = next(other.curves())
    curve = bca.measured_curve_of(other, label, rows, PLAN.reference_batch)
    fits = {"slim": bench.fit(get_law("slim"), rows)}
    made = bca_tables.memory_table(PLAN, {label: curve}, fits)
    assert made.rows == ()
    assert any("what the engine reserves" in note for note in made.notes)


def test_economy_is_the_same_every_time_and_counts_points(
    bench: Bench, curves: dict[str, Measured]
) -> None:
    plan = EconomyPlan(laws=("slim", "step"), counts=(1, 4), repeats=1, seed=3)
    some = [curves["opt-1.3b 64+128"]]
    first = economy.trials(bench, plan, some, PLAN, silent)
    assert first == economy.trials(bench, plan, some, PLAN, silent)
    kinds = {(t.law, t.choice, t.points) for t in first}
    assert ("step", "none", 0) in kinds
    assert ("slim", "all", 72) in kinds
    refused = next(t for t in first if (t.law, t.points) == ("slim", 1))
    assert refused.reason is not None
    assert refused.mape_pct is None
    table = economy.economy_table(plan, economy.summarise(first), len(some))
    assert [r["points"] for r in table.rows if r["law"] == "step"] == [0, 1, 4, 1, 4, 1, 4, 72]


def lines_of(chart: Any) -> list[Any]:
    """The line layers of a chart, however deep."""
    if hasattr(chart, "layer"):
        return [line for layer in chart.layer for line in lines_of(layer)]
    return [chart] if getattr(chart.mark, "type", chart.mark) == "line" else []


def test_the_economys_figure_goes_to_all_points_on_both_axes() -> None:
    def summary(choice: str, points: int) -> economy.Summary:
        return economy.Summary("slim", choice, points, 10.0 * points, (1, 2, 3), 80.0, 1.0, 1, 1)

    made = plots.economy([summary("random", 2), summary("random", 8), summary("all", 9)], ["slim"])
    assert made is not None
    shown = set()
    for panel in made.chart.concat:
        (line,) = lines_of(panel)
        encoding = line.encoding.to_dict()
        shown.add((encoding["x"]["field"], encoding["y"]["field"]))
        assert encoding["order"]["field"] == encoding["x"]["field"]
        # The designs that were not made have no end.
        data = next(c.data for c in (line, panel, made.chart) if c.data is not alt.Undefined)
        drawn = [(r["line"], r["points"]) for r in data.values]
        assert drawn == [("slim, random", points) for points in (2, 8, 9)]
    assert shown == {(x, y) for x in ("points", "gpu_s") for y in ("mape", "good")}


def test_farthest_points_start_in_the_middle_and_reach_the_corners() -> None:
    grid = np.array([(x, y) for x in (0.0, 0.5, 1.0) for y in (0.0, 0.5, 1.0)])
    chosen = economy.farthest_points(grid, 5)
    assert grid[chosen[0]].tolist() == [0.5, 0.5]
    assert sorted(map(tuple, grid[chosen[1:]].tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(set(economy.farthest_points(grid, 20).tolist())) == 9


@pytest.mark.parametrize("offset", [10.0, 40.0])
def test_the_knee_of_a_saturating_curve_is_at_its_offset(offset: float) -> None:
    batch = np.geomspace(1, 1000, 60)
    throughput = batch / (batch + offset)
    assert knee(batch, throughput) == pytest.approx(offset, rel=0.02)
    found = landmarks(batch, throughput, np.where(batch > 500, 3.0, 0.0))
    assert found.plateau is not None
    assert throughput[found.plateau] >= 0.95 * throughput.max() > throughput[found.plateau - 1]
    assert found.memory_limit is not None
    assert batch[found.memory_limit - 1] <= 500 < batch[found.memory_limit]


def test_a_straight_curve_has_no_landmarks() -> None:
    batch = np.array([1.0, 2.0, 4.0, 8.0])
    found = landmarks(batch, 10 * batch, np.zeros(4))
    assert (found.knee, found.plateau, found.memory_limit) == (None, None, None)
    assert at(2.0, batch, 10 * batch) == pytest.approx(20)
