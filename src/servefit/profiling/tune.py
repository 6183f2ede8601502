"""Profile, fit, advise, and verify the advice on the server: the whole path as one chooser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from servefit import api
from servefit.advise import (
    ENGINES,
    Advice,
    Infeasible,
    Problem,
    RelativeSlo,
    Slo,
    Terms,
    get_engine,
    predicted_problem,
    recommend,
)
from servefit.advise.decision import Rule
from servefit.calibration import Calibration
from servefit.profiling.auto import AutoChooser, fit_rows
from servefit.profiling.journal import has_result
from servefit.profiling.plan import Point
from servefit.profiling.server import Server

#: The advised cap is verified, and the fit corrected by that, so often.
MOST_VERIFICATIONS = 3
#: Advice that moves by no more than this share after its verification stands.
SMALL_CHANGE = 0.1
#: What is compared with the prediction: name of the row's column -> name for people.
COMPARED: Mapping[str, str] = {
    "total_tokens_per_s": "tokens/s",
    "ttft_mean_s": "TTFT",
    "tpot_mean_s": "TPOT",
    "e2e_mean_s": "E2E",
}


@dataclass(frozen=True)
class Question:
    """What is asked of the advisor.

    Attributes:
        input_tokens, output_tokens: mean lengths of requests.
        slos: limits on mean latencies.
        rule, epsilon: see `servefit.advise.recommend`.
        confidence: with which the SLOs must hold.
        rate_per_s: requests per second to serve.
    """

    input_tokens: int
    output_tokens: int
    slos: Sequence[Slo | RelativeSlo]
    rule: Rule = "efficiency"
    epsilon: float = 0.1
    confidence: float = 0.9
    rate_per_s: float | None = None


@dataclass(frozen=True)
class Verification:
    """The advised cap, as predicted and as measured.

    Attributes:
        batch_cap: requests that were kept in flight.
        predicted, measured: by column of `COMPARED`; a measured value may be unknown.
        broken: SLOs that the measurement breaks.
        unchecked: SLOs that it cannot tell of, since the time in the queue is unknown.
    """

    batch_cap: int
    predicted: Mapping[str, float]
    measured: Mapping[str, float | None]
    broken: tuple[str, ...]
    unchecked: tuple[str, ...] = ()


@dataclass
class TuneChooser:
    """First the points of ``auto``, then the advised cap; a `Chooser` of campaigns.

    Where a verification breaks an SLO or moves the advice, the new cap is verified too, up to
    `MOST_VERIFICATIONS` in all.

    Attributes:
        auto: chooses the points to fit on.
        question: for the advisor.
        calibration: the last fit.
        answer: the last advice.
        verifications: what the advised caps turned out to do.
        measured: the rows of the last fit.
    """

    auto: AutoChooser
    question: Question
    calibration: Calibration | None = None
    answer: Advice | Infeasible | None = None
    verifications: list[Verification] = field(default_factory=list)
    measured: Sequence[Mapping[str, Any]] = ()
    say: Callable[[str], None] = lambda text: None
    _auto_ended: bool = False
    _verifying: str | None = None
    _limits: Sequence[Slo] = ()

    def __call__(
        self, server: Server, whom: str, rows: Sequence[Mapping[str, Any]]
    ) -> Point | None:
        """The next point, given every row so far; ``None``: the answer stands."""
        if not self._auto_ended:
            point = self.auto(server, whom, rows)
            if point is not None:
                return point
            self._auto_ended = True
        results = {str(r.get("point_id")): r for r in rows if has_result(r)}
        while True:
            if self._verifying is not None:
                if self._verifying not in results:
                    self.say("the advised cap could not be verified")
                    return None
                self._verify(results[self._verifying])
            point = self._next(server, whom, results)
            if point is None:
                return None
            self._verifying = point.key(whom)
            if self._verifying not in results:  # else it was among the points already
                self.say(f"next: {point.label}: verify the advised cap")
                return point

    def _next(
        self, server: Server, whom: str, results: Mapping[str, Mapping[str, Any]]
    ) -> Point | None:
        """Fit, advise, and name the cap to verify; ``None`` if the answer stands."""
        known = {p.key(whom) for p in self.auto.candidates(server)}
        known |= {self._point(v.batch_cap).key(whom) for v in self.verifications}
        mine = [row for key, row in results.items() if key in known]
        if not mine:
            return None
        self.measured = mine
        self.calibration = fit_rows(mine, self.auto.law, self.auto.gpu)
        answer = self._advise(self.calibration, mine[-1], server)
        if self._confirmed(answer):
            return None
        self.answer = answer
        if isinstance(answer, Infeasible) or len(self.verifications) >= MOST_VERIFICATIONS:
            return None
        cap = answer.decision.chosen.batch_cap
        if server.seats is not None and cap > server.seats:
            self.say(f"a cap of {cap} cannot be verified on {server.seats} seats")
            return None
        return self._point(cap)

    def largest_kept(self) -> int | None:
        """The most requests in flight that were measured to keep every SLO; ``None``: no load."""
        loads = [
            int(row["concurrency"])
            for row in self.measured
            if self._limits and all(_seen_s(row, s) <= s.limit_s for s in self._limits)
        ]
        return max(loads, default=None)

    def _verify(self, row: Mapping[str, Any]) -> None:
        """Compare the advised cap with its measurement."""
        assert isinstance(self.answer, Advice)  # only an advised cap is verified
        chosen = self.answer.decision.chosen
        predicted = {f"{name}_mean_s": value for name, value in chosen.latency_s.items()}
        measured = {name: row.get(name) for name in COMPARED}
        broken: list[str] = []
        unchecked: list[str] = []
        for slo in self._limits:
            if _seen_s(row, slo) > slo.limit_s:
                known = measured[f"{slo.latency}_mean_s"] is not None
                (broken if known else unchecked).append(str(slo))
        self.verifications.append(
            Verification(
                batch_cap=int(row["concurrency"]),
                predicted={"total_tokens_per_s": chosen.total_tokens_per_s, **predicted},
                measured=measured,
                broken=tuple(broken),
                unchecked=tuple(unchecked),
            )
        )

    def _confirmed(self, fresh: Advice | Infeasible) -> bool:
        """Whether the verified cap keeps its SLOs, and knowing it changes the advice but little."""
        last = self.verifications[-1] if self.verifications else None
        if last is None or last.broken or isinstance(fresh, Infeasible):
            return False
        change = fresh.decision.chosen.batch_cap / last.batch_cap - 1
        return abs(change) <= SMALL_CHANGE

    def _point(self, cap: int) -> Point:
        asked = self.question
        return Point(
            cap, input_length=str(asked.input_tokens), output_length=str(asked.output_tokens)
        )

    def _advise(
        self, calibration: Calibration, row: Mapping[str, Any], server: Server
    ) -> Advice | Infeasible:
        asked, known = self.question, server.settings
        points = api.points_of(
            calibration,
            gpu=self.auto.gpu,
            input_tokens=asked.input_tokens,
            output_tokens=asked.output_tokens,
            batch=1,
            tensor_parallel_size=row.get("tensor_parallel_size") or 1,
            dtype=row.get("dtype"),
            kv_cache_dtype=row.get("kv_cache_dtype"),
        )
        terms = Terms(
            engine=get_engine(server.engine if server.engine in ENGINES else "vllm"),
            gpu_memory_utilization=known.get("gpu_memory_utilization") or 0.9,
            kv_capacity_tokens=known.get("kv_capacity_tokens"),
            max_num_batched_tokens=known.get("max_num_batched_tokens"),
            kv_cache_dtype=known.get("kv_cache_dtype"),
        )
        problem = predicted_problem(
            calibration, points, self._limits or asked.slos, terms, confidence=asked.confidence
        )
        self._limits = problem.slos  # a relative one is worked out once
        problem = replace(problem, slos=tuple(self._tightened(s, problem) for s in problem.slos))
        return recommend(
            problem, rule=asked.rule, epsilon=asked.epsilon, rate_per_s=asked.rate_per_s
        )

    def _tightened(self, slo: Slo, problem: Problem) -> Slo:
        """An SLO that a verified cap broke, times predicted / measured at that cap.

        The prediction is that of the fit that knows the measurement: what it still misses there it
        is taken to miss everywhere.
        """
        ratios = [
            float(problem.curve.latency_s[slo.latency][problem.curve.cap == v.batch_cap].max())
            / (v.measured[f"{slo.latency}_mean_s"] or math.inf)
            for v in self.verifications
            if str(slo) in v.broken and v.batch_cap in problem.curve.cap
        ]
        ratio = min(ratios, default=1.0)
        if ratio >= 1:
            return slo
        low = f"predictions are {1 - ratio:.1%} too low at a verified cap"
        tightened = Slo(slo.latency, slo.limit_s * ratio, f"{slo} as measured: {low}")
        self.say(f"{low}: {slo} counts as {tightened}")
        return tightened


def _seen_s(row: Mapping[str, Any], slo: Slo) -> float:
    """The latency of an SLO as measured, at most; infinite where it is unknown."""
    seen = row.get(f"{slo.latency}_mean_s")
    at_most = row.get(f"{slo.latency}_with_queue_mean_s") if seen is None else seen
    return math.inf if at_most is None else float(at_most)
