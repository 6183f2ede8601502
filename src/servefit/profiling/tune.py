"""Profile, fit, advise, and verify the advice on the server: the whole path as one chooser."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import numpy as np

from servefit import api
from servefit.advise import (
    ENGINES,
    Advice,
    Curve,
    Infeasible,
    Limit,
    RelativeSlo,
    Slo,
    Terms,
    get_engine,
    predicted_problem,
    recommend,
)
from servefit.advise.decision import Rule
from servefit.advise.slo import Reference
from servefit.calibration import Calibration
from servefit.profiling.auto import AutoChooser, fit_rows
from servefit.profiling.journal import has_result
from servefit.profiling.plan import Point
from servefit.profiling.server import Server

#: The advised cap is verified, and the fit corrected by that, so often.
MOST_VERIFICATIONS = 3
#: Advice that moves by no more than this share after its verification stands.
SMALL_CHANGE = 0.1
#: Advised latencies, and the columns that hold them as clients saw them.
AS_CLIENTS_SEE: Mapping[str, str] = {
    "ttft": "ttft_with_queue_mean_s",
    "tpot": "tpot_mean_s",
    "e2e": "e2e_with_queue_mean_s",
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
        predicted_tokens_per_s, measured_tokens_per_s: throughput.
        predicted_s: latencies by name as clients were to see them, see `as_clients_see`.
        measured_s: as they saw them, with HTTP and any queue; ``None``: unknown.
        broken: SLOs that the measurement breaks.
    """

    batch_cap: int
    predicted_tokens_per_s: float
    measured_tokens_per_s: float | None
    predicted_s: Mapping[str, float]
    measured_s: Mapping[str, float | None]
    broken: tuple[str, ...]


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
        known = {p.key(whom) for p in self.auto.points(server)}
        known |= {self._point(v.batch_cap).key(whom) for v in self.verifications}
        mine = [row for key, row in results.items() if key in known]
        if not mine:
            return None
        self.measured = mine
        self.calibration = fit_rows(mine, self.auto.law, self.auto.gpu)
        answer = self._advise(server)
        if self._confirmed(answer):
            return None
        self.answer = answer
        if isinstance(answer, Advice) and len(self.verifications) < MOST_VERIFICATIONS:
            return self._point(answer.decision.chosen.batch_cap)
        if not self.verified and (kept := self.largest_kept()) is not None:
            fallback = self._advise(server, only=kept)
            self.answer = fallback if isinstance(fallback, Advice) else answer
        return None

    def largest_kept(self) -> int | None:
        """The most requests in flight that were measured to keep every SLO; ``None``: no load."""
        return max(self._kept(), default=None)

    @property
    def verified(self) -> bool:
        """Whether the advised cap was measured and keeps every SLO."""
        answer = self.answer
        return isinstance(answer, Advice) and answer.decision.chosen.batch_cap in self._kept()

    def _kept(self) -> list[int]:
        """Loads that were measured to keep every SLO."""
        return [
            int(row["concurrency"])
            for row in self.measured
            if self._limits and all(_seen_s(row, s) <= s.limit_s for s in self._limits)
        ]

    def _verify(self, row: Mapping[str, Any]) -> None:
        """Compare the advised cap with its measurement."""
        assert isinstance(self.answer, Advice)  # only an advised cap is verified
        chosen = self.answer.decision.chosen
        self.verifications.append(
            Verification(
                batch_cap=int(row["concurrency"]),
                predicted_tokens_per_s=chosen.total_tokens_per_s,
                measured_tokens_per_s=row.get("total_tokens_per_s"),
                predicted_s=chosen.latency_s,
                measured_s={name: row.get(column) for name, column in AS_CLIENTS_SEE.items()},
                broken=tuple(str(s) for s in self._limits if _seen_s(row, s) > s.limit_s),
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
            cap,
            input_length=str(asked.input_tokens),
            output_length=str(asked.output_tokens),
            settings=self.auto.settings,
        )

    def _advise(self, server: Server, *, only: int | None = None) -> Advice | Infeasible:
        """What the last fit advises on this server, within the server's own cap.

        Args:
            server: the server.
            only: advise this cap if it is allowed at all, as it was measured: without a margin.
        """
        assert self.calibration is not None  # advice follows a fit
        calibration, row = self.calibration, self.measured[-1]
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
        engine = server.engine
        if engine is not None and engine not in ENGINES:
            self.say(f"no flags of {engine} are known: those printed are vLLM's")
        terms = Terms(
            engine=get_engine(engine if engine in ENGINES else "vllm"),
            gpu_memory_utilization=known.get("gpu_memory_utilization") or 0.9,
            kv_capacity_tokens=known.get("kv_capacity_tokens"),
            max_num_batched_tokens=known.get("max_num_batched_tokens"),
            kv_cache_dtype=known.get("kv_cache_dtype"),
        )
        problem = predicted_problem(
            calibration, points, self._limits or asked.slos, terms, confidence=asked.confidence
        )
        seen = as_clients_see(problem.curve, self.measured)
        self._limits = self._limits or tuple(map(_resolved, asked.slos, problem.slos, repeat(seen)))
        if only is not None:
            seen = seen.at_point_estimate().only(seen.cap[seen.cap <= only][-1:])
        problem = replace(
            problem,
            curve=seen,
            slos=tuple(self._limits),
            limits=(*problem.limits, *_seats(server)),
        )
        return recommend(
            problem, rule=asked.rule, epsilon=asked.epsilon, rate_per_s=asked.rate_per_s
        )


def as_clients_see(curve: Curve, rows: Sequence[Mapping[str, Any]]) -> Curve:
    """A predicted curve with the latencies of clients: HTTP, and what the law misses, on top.

    At each measured load clients saw a latency that differs from the predicted one in service; the
    differences are interpolated over the logarithm of the load, and the outermost go on beyond.

    Args:
        curve: as a law predicts it.
        rows: measured points of the curve's lengths, at so many requests in flight each.
    """
    caps = np.log(curve.cap)
    predicted, bound = dict(curve.latency_s), dict(curve.latency_bound_s)
    for name, column in AS_CLIENTS_SEE.items():
        seen_s = {r["concurrency"]: r[column] for r in rows if r.get(column) is not None}
        if not seen_s:
            continue
        loads = np.log(sorted(seen_s))
        missed_s = [seen_s[n] for n in sorted(seen_s)] - np.interp(loads, caps, predicted[name])
        on_top_s = np.interp(caps, loads, missed_s)
        predicted[name], bound[name] = predicted[name] + on_top_s, bound[name] + on_top_s
    return replace(curve, latency_s=predicted, latency_bound_s=bound)


def _resolved(asked: Slo | RelativeSlo, by_law: Slo, seen: Curve) -> Slo:
    """An SLO in seconds; a multiple of this curve's own latency is one of what clients see."""
    if isinstance(asked, Slo):
        return asked
    if (asked.reference.input_tokens, asked.reference.output_tokens) != (None, None):
        return by_law

    def latency_s(name: str, at: Reference) -> float:
        # Beyond the curve it is unknown, which `resolve` refuses.
        return float(np.interp(at.batch, seen.cap, seen.latency_s[name], right=math.nan))

    return asked.resolve(latency_s)


def _seats(server: Server) -> list[Limit]:
    """A cap above the server's own is not advised: it cannot be verified there."""
    if server.seats is None:
        return []
    remedy = f"the server has {server.seats} seats: start it with more, and tune again"
    return [Limit("the server's own cap", server.seats, remedy)]


def _seen_s(row: Mapping[str, Any], slo: Slo) -> float:
    """The latency of an SLO as clients saw it; infinite where it is unknown."""
    seen = row.get(AS_CLIENTS_SEE[slo.latency])
    return math.inf if seen is None else float(seen)
