"""Batch caps to try where more fit than can be tried while a slider is dragged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from servefit.advise import Curve, Problem, predicted_problem, recommend
from servefit.advise.advisor import Advice, deployment_limits
from servefit.advise.candidates import MAX_CANDIDATES
from servefit.advise.decision import slo_excess, violations
from servefit.calibration import Calibration
from servefit.points import IntArray
from servefit.report.view import Question

#: Up to so many caps every one is tried; of more, some, and those near where the answer changes.
EVERY_CAP, SOME_CAPS = 1500, 400
#: So many are tried between two neighbours in each round.
BETWEEN = 200
#: Each narrows 200-fold: enough for `MAX_CANDIDATES`.
ROUNDS = 4


def largest_cap(calibration: Calibration, question: Question) -> int:
    """The largest cap that memory, engine and schedule let run; 0 where nothing limits it."""
    fixed = replace(question.terms, candidates=[1])
    probe = predicted_problem(calibration, question.points, (), fixed)
    limits = (*deployment_limits(probe.deployment), *probe.limits)
    return min((limit.max_batch for limit in limits), default=0)


def with_few_caps(calibration: Calibration, question: Question) -> Question:
    """The question with candidates that can be tried at once, where more than `EVERY_CAP` fit.

    First `SOME_CAPS` at even ratios; then, round by round, `BETWEEN` more inside every gap across
    which an SLO, a limit or epsilon is crossed, and beside every best cap, until no such gap is
    left, see `_gaps`. Last the neighbours, halves and doubles of what is recommended. The answer is
    that of all caps (the first `MAX_CANDIDATES`) wherever, inside a gap of the first ones, the
    latencies, the throughput and the efficiency each go one way, or the throughput up and down
    once.
    """
    largest = min(largest_cap(calibration, question), MAX_CANDIDATES)
    if largest <= EVERY_CAP:
        return question
    tried = np.unique(np.rint(np.geomspace(1, largest, SOME_CAPS)).astype(np.int64))
    for _ in range(ROUNDS):
        problem = _problem(calibration, question, tried)
        gaps = {(a, b) for a, b in _gaps(problem, question) if tried[b] - tried[a] > 1}
        if not gaps:
            break
        within = [
            np.linspace(tried[a], tried[b], BETWEEN + 2).astype(np.int64) for a, b in sorted(gaps)
        ]
        tried = np.unique(np.concatenate([tried, *within]))
    answer = recommend(problem, rule=question.rule, epsilon=question.epsilon)
    if isinstance(answer, Advice):
        found = (answer.decision.chosen, answer.point_estimate)
        best = np.array([each.batch_cap for each in found if each is not None])
        tried = np.concatenate([tried, best - 1, best + 1, best // 2, best * 2])
        tried = np.unique(tried[(tried >= 1) & (tried <= largest)])
    return replace(question, terms=replace(question.terms, candidates=tried))


def _problem(calibration: Calibration, question: Question, caps: IntArray) -> Problem:
    terms = replace(question.terms, candidates=caps)
    return predicted_problem(
        calibration, question.points, question.slos, terms, confidence=question.confidence
    )


def _gaps(problem: Problem, question: Question) -> Iterator[tuple[int, int]]:
    """Indices of neighbouring caps between which the answer may lie.

    Those across which an SLO or a limit begins or ceases to hold, or efficiency or tolerance their
    epsilon; and those beside the caps of most throughput, most efficiency and least excess over
    the SLOs: with the margin for uncertainty, and without.
    """
    curve = problem.curve
    both = [curve] if curve.confidence is None else [curve, curve.at_point_estimate()]
    for each in both:
        yield from _gaps_of(each, problem, question)


def _gaps_of(curve: Curve, problem: Problem, question: Question) -> Iterator[tuple[int, int]]:
    limits = (*deployment_limits(problem.deployment), *problem.limits)
    throughput, last = curve.total_tokens_per_s, curve.cap.size - 1
    broken = violations(curve, problem.slos, limits)
    feasible = ~np.any([np.isnan(throughput), *broken.values()], axis=0)
    efficient = feasible & (curve.efficiency > question.epsilon)
    most = np.max(throughput, where=feasible, initial=0)
    good = feasible & (throughput >= (1 - question.epsilon) * most)
    for holds in (feasible, efficient, good, *broken.values()):
        for at in np.flatnonzero(holds[1:] != holds[:-1]).tolist():
            yield at, at + 1
    peaks = [
        np.where(allowed, values, -np.inf)
        for allowed, values in (
            (np.isfinite(throughput), throughput),
            (feasible, throughput),
            (efficient, throughput),
            (feasible, curve.efficiency),
        )
    ]
    if problem.slos:
        peaks.append(-slo_excess(curve, problem.slos, limits))
    for values in peaks:
        at = int(np.argmax(values))
        if np.isfinite(values[at]):
            yield max(at - 1, 0), at
            yield at, min(at + 1, last)
