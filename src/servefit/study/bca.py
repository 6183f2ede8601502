"""Batch-cap decisions on predicted curves against those on measured ones (Table V, Fig. 12, 13).

Full-profile BCA applies a rule to the measured curve; the law's BCA applies the same rule to the
curve that it predicts, and what it picks is scored on the measured one:

    throughput lost = 1 - T(B_law) / T(B_full)        positive is a loss
    SLO violation   = max(0, E2E(B_law) / SLO - 1)

The SLO is a multiple of the measured E2E at the cap nearest to a reference batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servefit import laws
from servefit.advise import Curve, Objective, Slo, rules
from servefit.advise.decision import Rule
from servefit.advise.measured import measured_runs
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.models import ModelShape
from servefit.points import BoolArray, FloatArray, IntArray, Points
from servefit.runs.select import parse_selections
from servefit.study.accuracy import Progress
from servefit.study.bench import Bench
from servefit.study.settings import BcaPlan, Target

RULES: tuple[Rule, ...] = ("tolerance", "efficiency")


@dataclass(frozen=True)
class Measured:
    """A measured curve, and the same points to ask a law about.

    Attributes:
        label: the curve's name.
        rows: its rows in the bench's table.
        curve: as measured.
        points: one a row.
        first: of each cap, the position of its first row among ``points``.
        reference_s: E2E at the cap nearest to the reference batch.
        reference_cap: that cap.
        engine: what ran; ``None`` where the rows do not say.
    """

    label: str
    rows: BoolArray
    curve: Curve
    points: Points
    first: IntArray
    reference_s: float
    reference_cap: int
    engine: str | None

    @property
    def model(self) -> ModelShape:
        """The model that ran."""
        return self.points.models[0]

    def predicted(self, calibration: Calibration) -> Curve:
        """What a law predicts for the same caps, told the caps and not what then ran."""
        caps = self.curve.cap.astype(np.float64)
        at_caps = _at(self.points, self.first, caps)
        answer = laws.predict(calibration, at_caps)
        single = laws.predict(calibration, _at(self.points, self.first[:1], np.ones(1)))
        latency = {"e2e": answer.e2e_s, "ttft": answer.ttft_s, "tpot": answer.tpot_s}
        return replace(
            self.curve,
            batch=answer.batch,
            total_tokens_per_s=answer.total_tokens_per_s,
            latency_s=latency,
            latency_bound_s=latency,
            throughput_bound=answer.total_tokens_per_s,
            single_tokens_per_s=float(single.total_tokens_per_s[0]),
        )

    def objective(self, multiple: float, rule: Rule, epsilon: float) -> Objective:
        """An SLO of so many times the reference latency, and a rule."""
        return Objective((Slo("e2e", multiple * self.reference_s),), rule, epsilon)


def _at(points: Points, chosen: IntArray, caps: FloatArray) -> Points:
    """Some of the points with other batches, which are caps."""
    context = points.mean_context_tokens
    serving = points.serving
    if serving is not None:
        serving = replace(
            serving,
            static=serving.static[chosen],
            chunked_prefill=serving.chunked_prefill[chosen],
            max_num_batched_tokens=serving.max_num_batched_tokens[chosen],
            kv_capacity_tokens=serving.kv_capacity_tokens[chosen],
            batch_is_cap=True,
        )
    return replace(
        points,
        model_index=points.model_index[chosen],
        hardware_index=points.hardware_index[chosen],
        input_tokens=points.input_tokens[chosen],
        output_tokens=points.output_tokens[chosen],
        batch=caps,
        tensor_parallel_size=points.tensor_parallel_size[chosen],
        mean_context_tokens=None if context is None else context[chosen],
        serving=serving,
    )


def measured_curve_of(
    bench: Bench, label: str, rows: BoolArray, reference_batch: float
) -> Measured:
    """A curve to decide on.

    Raises:
        ServefitError: its rows mix settings, or no E2E is known at the reference.
    """
    curve = measured_runs(bench.table.filter(rows)).curve
    observed = bench.observe(rows)
    caps = bench.table.numbers("cap")[rows][observed.index]
    first = np.array([np.flatnonzero(np.rint(caps) == cap)[:1] for cap in curve.cap])
    if first.size != curve.cap.size:
        raise ServefitError(f"{label}: some of its caps have no usable row")
    nearest = int(np.argmin(np.abs(np.log(curve.cap / reference_batch))))
    reference_s = float(curve.latency_s["e2e"][nearest])
    if not np.isfinite(reference_s):
        raise ServefitError(f"{label}: E2E at cap {curve.cap[nearest]} is unknown")
    return Measured(
        label=label,
        rows=rows,
        curve=curve,
        points=observed.observations.points,
        first=first[:, 0],
        reference_s=reference_s,
        reference_cap=int(curve.cap[nearest]),
        engine=bench.table.filter(rows).texts("engine")[0],
    )


@dataclass(frozen=True)
class Outcome:
    """A law's decision, scored on the measured curve.

    Attributes:
        cap, full_cap: chosen on the predicted and on the measured curve; ``None`` where nothing
            is feasible.
        lost: 1 - T(cap) / T(full_cap).
        violation: max(0, E2E(cap) / SLO - 1).
    """

    cap: int | None
    full_cap: int | None
    lost: float | None
    violation: float | None


def outcome(measured: Measured, predicted: Curve, objective: Objective) -> Outcome:
    """Decide on both curves and score on the measured one."""
    own, full = _choose(predicted, objective), _choose(measured.curve, objective)
    if own is None:
        return Outcome(None, None if full is None else int(measured.curve.cap[full]), None, None)
    throughput, e2e_s = measured.curve.total_tokens_per_s, measured.curve.latency_s["e2e"]
    return Outcome(
        cap=int(measured.curve.cap[own]),
        full_cap=None if full is None else int(measured.curve.cap[full]),
        lost=None if full is None else float(1 - throughput[own] / throughput[full]),
        violation=max(0.0, float(e2e_s[own] / objective.slos[0].limit_s - 1)),
    )


def _choose(curve: Curve, objective: Objective) -> int | None:
    """Position of the chosen cap; ``None`` where none is feasible."""
    feasible = np.isfinite(curve.total_tokens_per_s)
    for slo in objective.slos:
        feasible &= curve.latency_bound_s[slo.latency] <= slo.limit_s
    if objective.rule == "tolerance":
        return rules.tolerance(
            curve.batch, curve.total_tokens_per_s, feasible, epsilon=objective.epsilon
        )
    return rules.efficiency(
        curve.batch,
        curve.total_tokens_per_s,
        feasible,
        epsilon=objective.epsilon,
        single_throughput=curve.single_tokens_per_s,
    )


@dataclass(frozen=True)
class Grown:
    """A law trained on some curves, decided on a target.

    Attributes:
        target: of the plan.
        measured: the target's curve.
        law: the law.
        trained_on: names of the curves.
        num_points: rows trained on.
        predicted: the law's curve; ``None`` with a ``reason`` where it could not be fitted.
    """

    target: Target
    measured: Measured
    law: str
    trained_on: tuple[str, ...]
    num_points: int
    predicted: Curve | None
    reason: str | None = None


def grow(
    bench: Bench, plan: BcaPlan, curves: Mapping[str, Measured], progress: Progress
) -> tuple[list[Grown], list[str]]:
    """Every target with its training curves added one at a time, and targets that do not exist.

    Args:
        bench, plan: the rows and what to decide on them.
        curves: those that can be decided on.
        progress: told what is being done.
    """
    results: list[Grown] = []
    absent: list[str] = []
    for target in plan.target:
        before = len(results)
        for label, rows in bench.curves(parse_selections(target.where).mask(bench.table.frame)):
            helpers = _helpers(bench, target, rows) if label in curves else []
            for count in range(1, len(helpers) + 1):
                progress(f"decisions: {label} from {count} of {len(helpers)} curves")
                results += _trained(bench, plan, target, curves[label], helpers[:count])
        if len(results) == before:
            absent.append(
                f"{target.name}: does not exist on these runs: no curve of "
                f"{' and '.join(target.where)} has others to learn from"
            )
    return results, absent


def _helpers(bench: Bench, target: Target, rows: BoolArray) -> list[tuple[str, BoolArray]]:
    """Curves that equal the target's in ``same`` and come before it along ``grow``."""
    frame = bench.table.frame
    chosen = np.ones(frame.height, dtype=bool)
    first = int(np.flatnonzero(rows)[0])
    for column in target.same:
        if column not in frame.columns:
            raise ServefitError(f"[[bca.target]] {target.name!r}: no column {column!r}")
        values = np.array(frame[column].to_list(), dtype=object)
        chosen &= values == values[first]
    size = bench.table.numbers("output_length")
    if target.grow == "model":
        size = -bench.table.numbers("model_rank")
    chosen &= size < size[first]
    found = list(bench.curves(chosen))
    return sorted(found, key=lambda pair: float(size[pair[1]][0]))


def _trained(
    bench: Bench,
    plan: BcaPlan,
    target: Target,
    measured: Measured,
    helpers: Sequence[tuple[str, BoolArray]],
) -> Iterator[Grown]:
    mask = np.any([rows for _, rows in helpers], axis=0)
    names = tuple(label for label, _ in helpers)
    for law in plan.laws:
        try:
            calibration = bench.fit(laws.get_law(law), mask)
            predicted = measured.predicted(calibration)
        except ServefitError as error:
            yield Grown(target, measured, law, names, int(mask.sum()), None, str(error))
        else:
            yield Grown(target, measured, law, names, int(mask.sum()), predicted)


def fully_trained(grown: Sequence[Grown], law: str) -> list[Grown]:
    """Of each target curve the last fit of a law, with all training curves."""
    last: dict[tuple[str, str], Grown] = {}
    for each in grown:
        if each.law == law and each.predicted is not None:
            last[each.target.name, each.measured.label] = each
    return list(last.values())
