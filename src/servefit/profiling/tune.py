"""Profile, fit, advise, and verify the advice on the server: the whole path as one chooser."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from servefit import api
from servefit.advise import (
    ENGINES,
    Advice,
    Infeasible,
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
MOST_VERIFICATIONS = 2
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

    Where a verification breaks an SLO or moves the advice, the new cap is verified too, once.

    Attributes:
        auto: chooses the points to fit on.
        question: for the advisor.
        calibration: the last fit.
        answer: the last advice.
        verifications: what the advised caps turned out to do.
    """

    auto: AutoChooser
    question: Question
    calibration: Calibration | None = None
    answer: Advice | Infeasible | None = None
    verifications: list[Verification] = field(default_factory=list)
    say: Callable[[str], None] = lambda text: None
    _auto_ended: bool = False
    _verifying: str | None = None
    _limits: Sequence[Slo] = ()
    _slos: Sequence[Slo] = ()

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

    def _verify(self, row: Mapping[str, Any]) -> None:
        """Compare the advised cap with its measurement; a broken SLO is tightened by the ratio."""
        assert isinstance(self.answer, Advice)  # only an advised cap is verified
        chosen = self.answer.decision.chosen
        predicted = {f"{name}_mean_s": value for name, value in chosen.latency_s.items()}
        measured = {name: row.get(name) for name in COMPARED}
        limits = self._limits = self._limits or self.answer.objective.slos
        broken, unchecked, tightened = [], [], []
        for slo in limits:
            seen = measured[f"{slo.latency}_mean_s"]
            at_most = row.get(f"{slo.latency}_with_queue_mean_s") if seen is None else seen
            if seen is None and (at_most is None or at_most > slo.limit_s):
                unchecked.append(str(slo))
            elif seen is not None and seen > slo.limit_s:
                broken.append(str(slo))
                ratio = min(1.0, predicted[f"{slo.latency}_mean_s"] / seen)
                origin = f"{slo}, tightened since {seen / slo.limit_s - 1:.1%} more was measured"
                slo = Slo(slo.latency, slo.limit_s * ratio, origin)
            tightened.append(slo)
        if broken:
            self._slos = tightened
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
            calibration, points, self._slos or asked.slos, terms, confidence=asked.confidence
        )
        return recommend(
            problem, rule=asked.rule, epsilon=asked.epsilon, rate_per_s=asked.rate_per_s
        )
