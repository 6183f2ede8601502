"""From a curve and an objective to a batch cap, what bounds it, and what the neighbours trade."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from servefit.advise import rules
from servefit.advise.curve import LATENCIES, Curve
from servefit.advise.rules import BoolArray
from servefit.advise.slo import Slo
from servefit.errors import ServefitError
from servefit.points import FloatArray
from servefit.units import format_confidence, format_duration

Rule = Literal["efficiency", "tolerance"]
#: What bounds a recommendation, besides the names of limits.
PEAK, END = "nothing", "candidates"


@dataclass(frozen=True)
class Objective:
    """What to choose by.

    Attributes:
        slos: limits on mean latencies; all must hold.
        rule: ``"efficiency"`` (Eq. 13) or ``"tolerance"``, see `servefit.advise.rules`.
        epsilon: the rule's epsilon, in [0, 1).
    """

    slos: tuple[Slo, ...] = ()
    rule: Rule = "efficiency"
    epsilon: float = 0.1


@dataclass(frozen=True)
class Limit:
    """Something besides the SLO that bounds the batch.

    Attributes:
        name: as printed: "KV capacity", "token budget".
        max_batch: the largest batch that it lets run.
        remedy: why it is so, and what would raise it.
    """

    name: str
    max_batch: int
    remedy: str


@dataclass(frozen=True)
class Candidate:
    """One point of a curve; see `Curve` for the fields."""

    batch_cap: int
    batch: float
    total_tokens_per_s: float
    requests_per_s: float
    latency_s: Mapping[str, float]
    latency_bound_s: Mapping[str, float]
    throughput_bound: float
    efficiency: float


@dataclass(frozen=True)
class Alternative:
    """Another candidate and what it trades against the recommended one.

    Attributes:
        candidate: the point.
        throughput_change: (T - T_recommended) / T_recommended.
        latency_change: the same for each latency.
        breaks: names of what it breaks; empty where it is allowed.
    """

    candidate: Candidate
    throughput_change: float
    latency_change: Mapping[str, float]
    breaks: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """The recommended candidate.

    Attributes:
        chosen: the recommendation.
        bounded_by: what keeps it from a larger throughput: names of SLOs and limits,
            "efficiency", "tolerance", `END` (the candidates end) or `PEAK` (throughput does not
            grow beyond it).
        alternatives: neighbouring, half and double caps, where they are candidates; ascending.
    """

    chosen: Candidate
    bounded_by: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class Infeasible:
    """No candidate is feasible.

    Attributes:
        constraint: what fails first: a limit, then the SLO, then the rule.
        message: one line: the value, the limit and what would make it feasible.
    """

    constraint: str
    message: str


def decide(
    curve: Curve, objective: Objective, limits: Sequence[Limit] = ()
) -> Decision | Infeasible:
    """Apply the objective's rule to the candidates that meet every SLO and limit.

    SLOs are checked on ``curve.latency_bound_s``, throughput is compared by its point estimate. A
    candidate with an unknown throughput, or an unknown latency that an SLO bounds, is infeasible.

    Raises:
        ServefitError: epsilon out of range; a latency under an SLO is unknown everywhere; T(1) is
            unknown under the efficiency rule.
    """
    _check(curve, objective)
    broken = violations(curve, objective.slos, limits)
    feasible = ~np.any([np.isnan(curve.total_tokens_per_s), *broken.values()], axis=0)
    throughput = curve.total_tokens_per_s
    if objective.rule == "efficiency":
        index = rules.efficiency(
            curve.batch,
            throughput,
            feasible,
            epsilon=objective.epsilon,
            single_throughput=curve.single_tokens_per_s,
        )
        broken["efficiency"] = ~(curve.efficiency > objective.epsilon)
    else:
        index = rules.tolerance(curve.batch, throughput, feasible, epsilon=objective.epsilon)
        floor = (1 - objective.epsilon) * np.max(throughput, where=feasible, initial=0)
        broken["tolerance"] = feasible & (throughput < floor)
    if index is None:
        return _diagnose(curve, objective, limits, feasible)
    return Decision(
        chosen=candidate_at(curve, index),
        bounded_by=_bounds(curve, objective, limits, index, feasible, broken),
        alternatives=_alternatives(curve, index, broken),
    )


def candidate_at(curve: Curve, index: int) -> Candidate:
    """One point of the curve."""
    return Candidate(
        batch_cap=int(curve.cap[index]),
        batch=float(curve.batch[index]),
        total_tokens_per_s=float(curve.total_tokens_per_s[index]),
        requests_per_s=float(curve.requests_per_s[index]),
        latency_s={name: float(curve.latency_s[name][index]) for name in LATENCIES},
        latency_bound_s={name: float(curve.latency_bound_s[name][index]) for name in LATENCIES},
        throughput_bound=float(curve.throughput_bound[index]),
        efficiency=float(curve.efficiency[index]),
    )


def _check(curve: Curve, objective: Objective) -> None:
    if not 0 <= objective.epsilon < 1:
        raise ServefitError(f"epsilon = {objective.epsilon:g}: must be at least 0 and below 1")
    unknown = {name for name in LATENCIES if np.isnan(curve.latency_bound_s[name]).all()}
    for slo in objective.slos:
        if slo.latency in unknown:
            known = " or ".join(n.upper() for n in LATENCIES if n not in unknown)
            why, also = "is unknown at every candidate", ""
            if slo.latency == "tpot" and curve.output_tokens <= 1:
                why, also = "does not exist with one output token", ", or ask for 2 or more of them"
            raise ServefitError(
                f"SLO {slo}: {slo.latency.upper()} {why}; bound {known or 'none'} instead{also}"
            )
    if objective.rule == "efficiency" and not curve.single_tokens_per_s > 0:
        raise ServefitError(
            "the efficiency rule needs T(1), the throughput at batch 1: measure it, or use "
            "--rule tolerance"
        )


def violations(curve: Curve, slos: Sequence[Slo], limits: Sequence[Limit]) -> dict[str, BoolArray]:
    """Which candidates break what, by its name; an unknown latency breaks its SLO."""
    none = np.zeros(curve.cap.shape, dtype=bool)
    broken: dict[str, BoolArray] = {}
    for slo in slos:
        name = f"SLO {slo}"
        met = curve.latency_bound_s[slo.latency] <= slo.limit_s
        broken[name] = broken.get(name, none) | ~met
    for limit in limits:
        broken[limit.name] = broken.get(limit.name, none) | (curve.cap > limit.max_batch)
    return broken


def _bounds(
    curve: Curve,
    objective: Objective,
    limits: Sequence[Limit],
    index: int,
    feasible: BoolArray,
    broken: Mapping[str, BoolArray],
) -> tuple[str, ...]:
    """What forbids the next larger candidate that has more throughput."""
    larger = curve.cap > curve.cap[index]
    better = larger & (curve.total_tokens_per_s > curve.total_tokens_per_s[index])
    if objective.rule == "tolerance" and (better & feasible).any():
        return ("tolerance",)
    if better.any():
        following = int(np.argmin(np.where(better, curve.cap, np.iinfo(np.int64).max)))
        return tuple(name for name, breaks in broken.items() if breaks[following])
    if larger.any():
        return (PEAK,)
    at_limit = tuple(x.name for x in limits if x.max_batch <= curve.cap[index])
    return at_limit or (END,)


def _alternatives(
    curve: Curve, index: int, broken: Mapping[str, BoolArray]
) -> tuple[Alternative, ...]:
    order = np.argsort(curve.cap)
    place = int(np.flatnonzero(order == index)[0])
    wanted = {int(order[p]) for p in (place - 1, place + 1) if 0 <= p < order.size}
    cap = curve.cap[index]
    for other in {cap // 2, cap * 2}:
        wanted |= {int(i) for i in np.flatnonzero(curve.cap == other)}
    chosen = candidate_at(curve, index)
    return tuple(
        _alternative(
            candidate_at(curve, i), chosen, [n for n, breaks in broken.items() if breaks[i]]
        )
        for i in sorted(wanted, key=lambda i: int(curve.cap[i]))
    )


def _alternative(other: Candidate, chosen: Candidate, breaks: Sequence[str]) -> Alternative:
    return Alternative(
        candidate=other,
        throughput_change=other.total_tokens_per_s / chosen.total_tokens_per_s - 1,
        latency_change={
            name: other.latency_s[name] / chosen.latency_s[name] - 1 for name in LATENCIES
        },
        breaks=tuple(breaks),
    )


def _diagnose(
    curve: Curve, objective: Objective, limits: Sequence[Limit], feasible: BoolArray
) -> Infeasible:
    """Why nothing is feasible: limits first, then the SLO, then the rule."""
    known = np.isfinite(curve.total_tokens_per_s)
    if not known.any():
        return Infeasible("throughput", "the throughput is unknown at every candidate")
    smallest = int(curve.cap[known].min())
    for limit in limits:
        if limit.max_batch < smallest:
            return Infeasible(
                limit.name,
                f"{limit.name} allows a batch of {max(limit.max_batch, 0)}, the smallest candidate "
                f"is {smallest}: {limit.remedy}",
            )
    if not feasible.any():
        return _diagnose_slo(curve, objective.slos, limits)
    best = float(np.max(curve.efficiency, where=feasible, initial=-np.inf))
    cap = int(curve.cap[feasible][np.argmax(curve.efficiency[feasible])])
    return Infeasible(
        "efficiency",
        f"no candidate within the SLO has batching efficiency above epsilon = "
        f"{objective.epsilon:g}: the best is {best:.3g} at batch {cap}; lower epsilon below that, "
        "add smaller candidates, or use --rule tolerance",
    )


def slo_excess(curve: Curve, slos: Sequence[Slo], limits: Sequence[Limit] = ()) -> FloatArray:
    """The largest ratio of a latency bound to its limit; infinite where unknown or over a limit."""
    excess = np.max([curve.latency_bound_s[slo.latency] / slo.limit_s for slo in slos], axis=0)
    allowed = np.isfinite(curve.total_tokens_per_s) & ~np.isnan(excess)
    for limit in limits:
        allowed &= curve.cap <= limit.max_batch
    return np.where(allowed, excess, np.inf)


def _diagnose_slo(curve: Curve, slos: Sequence[Slo], limits: Sequence[Limit]) -> Infeasible:
    """The candidate that comes nearest to every SLO, and what it would need."""
    excess = slo_excess(curve, slos, limits)
    index = int(np.argmin(excess))
    asked = " and ".join(f"SLO {slo}" for slo in slos)
    if not np.isfinite(excess[index]):
        return Infeasible(
            f"SLO {slos[0]}", f"{asked}: its latency is unknown at every candidate that fits"
        )
    missed = [s for s in slos if not curve.latency_bound_s[s.latency][index] <= s.limit_s]
    needs = " and ".join(
        f"{s.latency.upper()} >= {format_duration(float(curve.latency_bound_s[s.latency][index]))}"
        for s in missed
    )
    held = (
        "" if curve.confidence is None else f" at {format_confidence(curve.confidence)} confidence"
    )
    where = f"batch {int(curve.cap[index])} comes nearest"
    smallest = int(curve.cap[np.isfinite(curve.total_tokens_per_s)].min())
    smaller = " or add smaller candidates," if smallest > 1 else ""
    return Infeasible(
        f"SLO {missed[0]}",
        f"no candidate meets {asked}{held}: {where} and needs {needs}; allow that,{smaller} or use "
        "faster or more GPUs",
    )
