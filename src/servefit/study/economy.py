"""How few points are enough: accuracy and decisions against points profiled and GPU-seconds spent.

For each number of points, choices of them are trained on and every other run is predicted. A
choice is random (the same ones for every law) or designed:

- `spread`: farthest-point sampling in the logarithms of parameters, lengths and batch, each scaled
  to its range, from the point nearest to the middle on;
- `cheapest`: the runs that took the fewest GPU-seconds first;
- `none`: no run at all, for laws that have a prior;
- `all`: every run, where no run is left to predict and the error is that on the training rows.

Decisions are made for every curve and SLO multiple above 1 under the tolerance rule. One is good
where the law's cap loses at most 5 % of the throughput that the measured curve allows and breaks
the SLO by at most 5 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from servefit import laws
from servefit.errors import ServefitError
from servefit.laws.support import mape_pct
from servefit.points import BoolArray, FloatArray, IntArray
from servefit.study.accuracy import Progress
from servefit.study.bca import Measured, Outcome, outcome
from servefit.study.bench import Bench
from servefit.study.savings import run_seconds
from servefit.study.settings import BcaPlan, EconomyPlan
from servefit.study.tables import Column, Table

#: A decision is good within these.
GOOD_LOSS, GOOD_VIOLATION = 0.05, 0.05


@dataclass(frozen=True)
class Trial:
    """One choice of points.

    Attributes:
        law, choice, points: what was fitted on what.
        gpu_s: seconds spent measuring the points; NaN if unknown.
        mape_pct: throughput, on every run not chosen (of `all`: on the chosen).
        good_pct: share of decisions that are good; ``None`` without curves to decide on.
        lost_pct: mean throughput lost, over decisions that were made.
        reason: why it could not be fitted.
    """

    law: str
    choice: str
    points: int
    gpu_s: float
    mape_pct: float | None = None
    good_pct: float | None = None
    lost_pct: float | None = None
    reason: str | None = None


def trials(
    bench: Bench,
    plan: EconomyPlan,
    curves: Sequence[Measured],
    bca: BcaPlan,
    progress: Progress,
) -> list[Trial]:
    """Every law on every choice."""
    size = bench.table.frame.height
    seconds = run_seconds(bench)
    results = []
    choices = list(_choices(bench, plan, seconds))
    for law in plan.laws:
        for number, (choice, chosen) in enumerate(choices):
            if number % 10 == 0:
                progress(f"economy, {law}: {number} of {len(choices)} choices")
            mask = np.zeros(size, dtype=bool)
            mask[chosen] = True
            results.append(_trial(bench, law, choice, mask, seconds, curves, bca))
    return results


def _choices(
    bench: Bench, plan: EconomyPlan, seconds: FloatArray
) -> Iterator[tuple[str, IntArray]]:
    """Name of each choice and the rows chosen."""
    size = bench.table.frame.height
    counts = [n for n in plan.counts if n < size]
    yield "none", np.arange(0)
    for count in counts:
        for repeat in range(plan.repeats):
            # One generator a choice: a choice does not depend on which others are asked for.
            generator = np.random.default_rng([plan.seed, count, repeat])
            yield "random", generator.choice(size, count, replace=False)
    spread = farthest_points(_coordinates(bench), max(counts, default=0))
    cheapest = np.argsort(seconds, kind="stable")
    for count in counts:
        yield "spread", spread[:count]
        if np.isfinite(seconds).all():
            yield "cheapest", cheapest[:count]
    yield "all", np.arange(size)


def _coordinates(bench: Bench) -> FloatArray:
    """Logarithms of parameters, lengths and cap of each row, (n, 4), each scaled to 0..1."""
    observed = bench.observe(np.ones(bench.table.frame.height, dtype=bool))
    points = observed.observations.points
    parameters = np.full(bench.table.frame.height, np.nan)
    parameters[observed.index] = points.per_model(lambda m: m.num_parameters)
    columns = [parameters, *(bench.table.numbers(c) for c in _SIZES)]
    logs = np.log(np.stack(columns, axis=-1))
    low, high = np.nanmin(logs, axis=0), np.nanmax(logs, axis=0)
    scaled = (logs - low) / np.where(high > low, high - low, 1.0)
    return np.asarray(np.nan_to_num(scaled, nan=0.5))


_SIZES = ("input_tokens", "output_tokens", "cap")


def farthest_points(coordinates: FloatArray, count: int) -> IntArray:
    """The point nearest to the middle, then each time the one farthest from all chosen."""
    distance = np.linalg.norm(coordinates - 0.5, axis=1)
    chosen = [int(np.argmin(distance))] if count else []
    nearest = np.full(len(coordinates), np.inf)
    while len(chosen) < min(count, len(coordinates)):
        away = np.linalg.norm(coordinates - coordinates[chosen[-1]], axis=1)
        nearest = np.minimum(nearest, away)
        nearest[chosen] = -1.0
        chosen.append(int(np.argmax(nearest)))
    return np.array(chosen, dtype=np.int64)


def _trial(
    bench: Bench,
    law: str,
    choice: str,
    mask: BoolArray,
    seconds: FloatArray,
    curves: Sequence[Measured],
    bca: BcaPlan,
) -> Trial:
    points, gpu_s = int(mask.sum()), float(seconds[mask].sum())
    fitted = laws.get_law(law)
    try:
        calibration = bench.fit(fitted, mask) if points else fitted.prior()
    except ServefitError as error:
        return Trial(law, choice, points, gpu_s, reason=str(error))
    rest = bench.observe(mask if mask.all() else ~mask).observations
    answer = laws.predict(calibration, rest.points)
    outcomes = [
        outcome(measured, predicted, measured.objective(multiple, "tolerance", bca.epsilon))
        for measured in curves
        for predicted in [measured.predicted(calibration)]
        for multiple in bca.slo_multiples
        if multiple > 1
    ]
    lost = [o.lost for o in outcomes if o.lost is not None]
    return Trial(
        law,
        choice,
        points,
        gpu_s,
        mape_pct(answer.total_tokens_per_s, rest.total_tokens_per_s),
        100 * float(np.mean([_good(o) for o in outcomes])) if outcomes else None,
        100 * float(np.mean(lost)) if lost else None,
    )


def _good(made: Outcome) -> bool:
    if made.lost is None or made.violation is None:
        return False
    return made.lost <= GOOD_LOSS and made.violation <= GOOD_VIOLATION


@dataclass(frozen=True)
class Summary:
    """All trials of one law, kind of choice and number of points.

    Attributes:
        gpu_s: median.
        mape_pct: 10th percentile, median and 90th of those that could be fitted.
        good_pct, lost_pct: means.
        fitted, tried: how many of how many.
    """

    law: str
    choice: str
    points: int
    gpu_s: float
    mape_pct: tuple[float, float, float] | None
    good_pct: float | None
    lost_pct: float | None
    fitted: int
    tried: int


def summarise(results: Sequence[Trial]) -> list[Summary]:
    """One summary a law, kind of choice and number of points, in that order."""
    groups: dict[tuple[str, str, int], list[Trial]] = {}
    for trial in results:
        groups.setdefault((trial.law, trial.choice, trial.points), []).append(trial)
    summaries = []
    for (law, choice, points), members in groups.items():
        errors = [t.mape_pct for t in members if t.mape_pct is not None]
        good = [t.good_pct for t in members if t.good_pct is not None]
        lost = [t.lost_pct for t in members if t.lost_pct is not None]
        quantiles = np.quantile(errors, [0.1, 0.5, 0.9]).tolist() if errors else None
        summaries.append(
            Summary(
                law=law,
                choice=choice,
                points=points,
                gpu_s=float(np.median([t.gpu_s for t in members])),
                mape_pct=None if quantiles is None else (quantiles[0], quantiles[1], quantiles[2]),
                good_pct=float(np.mean(good)) if good else None,
                lost_pct=float(np.mean(lost)) if lost else None,
                fitted=len(errors),
                tried=len(members),
            )
        )
    order = ("none", "random", "spread", "cheapest", "all")
    return sorted(summaries, key=lambda s: (s.law, order.index(s.choice), s.points))


def economy_table(plan: EconomyPlan, summaries: Sequence[Summary], curves: int) -> Table:
    """The summaries as a table."""
    rows = tuple(
        {
            "law": s.law,
            "choice": s.choice,
            "points": s.points,
            "gpu_s": s.gpu_s,
            "mape_pct_median": s.mape_pct and s.mape_pct[1],
            "mape_pct_10": s.mape_pct and s.mape_pct[0],
            "mape_pct_90": s.mape_pct and s.mape_pct[2],
            "good_decisions_pct": s.good_pct,
            "throughput_lost_pct": s.lost_pct,
            "fitted": s.fitted,
            "tried": s.tried,
        }
        for s in summaries
    )
    notes = (
        f"random: {plan.repeats} choices of each number, seed {plan.seed}, the same for every law",
        "spread: farthest points in log parameters, lengths and cap; cheapest: fewest GPU-seconds "
        "first; all: every run, with the error on the training rows",
        f"A decision is good that loses at most {GOOD_LOSS:.0%} throughput and breaks the SLO by "
        f"at most {GOOD_VIOLATION:.0%}; over {curves} curves and every SLO multiple above 1, "
        "tolerance rule",
    )
    columns = (
        Column("law", "law"),
        Column("choice", "choice of points"),
        Column("points", "points", 0),
        Column("gpu_s", "GPU-s", 0),
        Column("mape_pct_median", "throughput MAPE, %, median", 1),
        Column("mape_pct_10", "10th percentile", 1),
        Column("mape_pct_90", "90th", 1),
        Column("good_decisions_pct", "good decisions, %", 0),
        Column("throughput_lost_pct", "throughput lost, %, mean", 1),
        Column("fitted", "fitted", 0),
        Column("tried", "tried", 0),
    )
    return Table("economy", "Profiling economy", columns, rows, notes, long=True)
