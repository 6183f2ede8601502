"""The advice as plain data, as in `servefit advise --json`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from servefit.advise.advisor import Advice
from servefit.advise.decision import Candidate


def advice_as_json(answer: Advice, warnings: Sequence[str]) -> dict[str, Any]:
    """The advice in SI units; unknown is null."""
    decision, point = answer.decision, answer.point_estimate
    return {
        "feasible": True,
        "batch_cap": decision.chosen.batch_cap,
        "bounded_by": decision.bounded_by,
        "rule": answer.objective.rule,
        "epsilon": answer.objective.epsilon,
        "slos": answer.objective.slos,
        "confidence": answer.curve.confidence,
        "prediction": _candidate(decision.chosen),
        "point_estimate": None if point is None else _candidate(point),
        "alternatives": [
            {
                **_candidate(other.candidate),
                "throughput_change": other.throughput_change,
                **{f"{name}_change": value for name, value in other.latency_change.items()},
                "breaks": other.breaks,
            }
            for other in decision.alternatives
        ],
        "kv_bytes": answer.kv_bytes,
        "freed_bytes": answer.freed_bytes,
        "memory": answer.memory,
        "settings": answer.settings,
        "replicas": answer.replicas,
        "warnings": warnings,
    }


def _candidate(point: Candidate) -> dict[str, Any]:
    """One point of the curve; ``_bound`` values hold with the stated confidence."""
    return {
        "batch_cap": point.batch_cap,
        "batch": point.batch,
        "efficiency": point.efficiency,
        "requests_per_s": point.requests_per_s,
        "total_tokens_per_s": point.total_tokens_per_s,
        "total_tokens_per_s_bound": point.throughput_bound,
        **{f"{name}_s": value for name, value in point.latency_s.items()},
        **{f"{name}_s_bound": value for name, value in point.latency_bound_s.items()},
    }
