"""Batch caps to try where more fit than can be tried while a slider is dragged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servefit.advise import Infeasible, predicted_problem
from servefit.advise.advisor import deployment_limits
from servefit.calibration import Calibration
from servefit.points import IntArray
from servefit.report.view import Question, look

#: Up to so many caps every one is tried; of more, some and those beside the best.
EVERY_CAP, SOME_CAPS = 1500, 400
#: Each narrows 200-fold: enough for any number of caps that fits 64 bits.
ROUNDS = 9


def largest_cap(calibration: Calibration, question: Question) -> int:
    """The largest cap that memory, engine and schedule let run; 0 where nothing limits it."""
    fixed = replace(question.terms, candidates=[1])
    probe = predicted_problem(calibration, question.points, (), fixed)
    limits = (*deployment_limits(probe.deployment), *probe.limits)
    return min((limit.max_batch for limit in limits), default=0)


def with_few_caps(calibration: Calibration, question: Question) -> Question:
    """The question with candidates that can be tried at once, where more than `EVERY_CAP` fit.

    First `SOME_CAPS` at even ratios; then, round by round, as many between the neighbours of those
    that these recommend, until every cap there is tried; last also the halves and doubles of these.
    Where throughput and latency grow with the batch, the recommendation is that among all. However
    many fit, at most 7 x `SOME_CAPS` are tried at once.
    """
    largest = largest_cap(calibration, question)
    if largest <= EVERY_CAP:
        return question
    some = np.unique(np.rint(np.geomspace(1, largest, SOME_CAPS)).astype(np.int64))
    tried = some
    for _ in range(ROUNDS):
        asked = replace(question, terms=replace(question.terms, candidates=tried))
        answer = look(calibration, asked).answer
        if isinstance(answer, Infeasible):
            return asked
        found = (answer.decision.chosen, answer.point_estimate)
        best = sorted({each.batch_cap for each in found if each is not None})
        spans = [_beside(tried, cap) for cap in best]
        if all(high - low < SOME_CAPS for low, high in spans):
            break
        within = [np.linspace(low, high, SOME_CAPS).astype(np.int64) for low, high in spans]
        tried = np.unique(np.concatenate([some, *within]))
    near = [
        np.arange(max(low, cap - SOME_CAPS // 2), min(high, cap + SOME_CAPS // 2) + 1)
        for cap, (low, high) in zip(best, spans, strict=True)
    ]
    every = np.concatenate([some, *(part for n in near for part in (n, n // 2, n * 2))])
    every = np.unique(every[(every >= 1) & (every <= largest)])
    return replace(question, terms=replace(question.terms, candidates=every))


def _beside(tried: IntArray, cap: int) -> tuple[int, int]:
    """The tried caps on either side of one of them."""
    at = int(np.searchsorted(tried, cap))
    return int(tried[max(at - 1, 0)]), int(tried[min(at + 1, tried.size - 1)])
