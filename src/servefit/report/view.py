"""A question to the advisor, its answer, and all that is needed to draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from servefit.advise import (
    Advice,
    Infeasible,
    Problem,
    RelativeSlo,
    Slo,
    Terms,
    predicted_problem,
    recommend,
)
from servefit.advise.decision import Rule
from servefit.advise.words import headline
from servefit.calibration import Calibration
from servefit.laws import Prediction, cautions, predict
from servefit.laws.step import StepLaw
from servefit.laws.step.why import Why, why
from servefit.points import FloatArray, IntArray, Points, Serving
from servefit.workload import Workload

#: Points of a drawn curve: every cap is tried, so many are drawn.
DRAWN = 120


@dataclass(frozen=True)
class Question:
    """What `servefit advise` is asked.

    Attributes:
        points: one point: model, GPU, lengths, parallelism and schedule.
        slos: limits on mean latencies.
        terms: how the model is to be served.
        rule, epsilon: see `servefit.advise.rules`.
        confidence: one-sided, see `servefit.advise.predicted_curve`.
        rate_per_s: requests per second to serve.
        workload: what the lengths of the points were taken from; ``None`` where requests are equal.
    """

    points: Points
    slos: Sequence[Slo | RelativeSlo] = ()
    terms: Terms = field(default_factory=Terms)
    rule: Rule = "efficiency"
    epsilon: float = 0.1
    confidence: float = 0.9
    rate_per_s: float | None = None
    workload: Workload | None = None


@dataclass(frozen=True)
class View:
    """A question with its answer.

    Attributes:
        calibration: what answered.
        question: what was asked.
        problem: the curve that was chosen from, absolute SLOs, memory and limits.
        answer: the advice, or why there is none.
        warnings: what to know before trusting it, one sentence each.
        drawn: indices into the curve's candidates of those that are drawn.
        prediction: of these, all that the law says.
        why: of these, what a decode step is made of; ``None`` where the law has no steps.
    """

    calibration: Calibration
    question: Question
    problem: Problem
    answer: Advice | Infeasible
    warnings: tuple[str, ...]
    drawn: IntArray
    prediction: Prediction
    why: Why | None

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        answer = self.answer
        return headline(answer) if isinstance(answer, Advice) else f"No batch cap: {answer.message}"

    @property
    def cap(self) -> int | None:
        """The recommended batch cap; ``None`` where there is none."""
        answer = self.answer
        return answer.decision.chosen.batch_cap if isinstance(answer, Advice) else None

    @property
    def knee_batch(self) -> float | None:
        """See `servefit.laws.step.why.Why`; ``None`` where there is none."""
        if self.why is None or not np.isfinite(self.why.knee_batch[0]):
            return None
        return float(self.why.knee_batch[0])


def look(calibration: Calibration, question: Question) -> View:
    """Answer a question.

    Raises:
        ServefitError: as `servefit.advise.predicted_problem` and `servefit.advise.recommend`.
    """
    problem = predicted_problem(
        calibration, question.points, question.slos, question.terms, confidence=question.confidence
    )
    answer = recommend(
        problem, rule=question.rule, epsilon=question.epsilon, rate_per_s=question.rate_per_s
    )
    curve = problem.curve
    extra: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    if isinstance(answer, Advice):
        cap = answer.decision.chosen.batch_cap
        at_cap = question.points.with_batch(float(cap))
        extra = (cap,)
        warnings = (
            *answer.notes,
            *calibration.extrapolates(at_cap),
            *cautions(calibration, at_cap),
        )
    drawn = drawn_caps(curve.cap, extra)
    running = _running(question.points, curve.batch[drawn])
    return View(
        calibration=calibration,
        question=question,
        problem=problem,
        answer=answer,
        warnings=warnings,
        drawn=drawn,
        prediction=predict(calibration, running),
        why=why(calibration, running) if calibration.law == StepLaw.name else None,
    )


def drawn_caps(caps: IntArray, extra: npt.ArrayLike = ()) -> IntArray:
    """Indices of about `DRAWN` ascending caps at even ratios, with both ends and ``extra``."""
    wanted = np.concatenate([np.geomspace(caps[0], caps[-1], DRAWN), np.asarray(extra, float)])
    return np.unique(np.clip(np.searchsorted(caps, wanted - 0.5), 0, len(caps) - 1))


def _running(points: Points, batch: FloatArray) -> Points:
    """The points at batches that run, whatever cap or budget let them."""
    serving = replace(
        points.serving or Serving(),
        batch_is_cap=False,
        kv_capacity_tokens=np.asarray(np.inf),
        max_num_batched_tokens=np.asarray(np.nan),
    )
    return replace(points, serving=serving).with_batch(batch)
