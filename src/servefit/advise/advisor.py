"""The whole advice: batch cap, memory, settings and replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from servefit.advise.curve import Curve
from servefit.advise.decision import (
    Candidate,
    Decision,
    Infeasible,
    Limit,
    Objective,
    Rule,
    candidate_at,
    decide,
)
from servefit.advise.settings import Ask, Engine, Settings
from servefit.advise.slo import Slo
from servefit.errors import ServefitError
from servefit.memory import PARALLEL_SIZES, KvMemory, gpus_needed
from servefit.models import ModelShape
from servefit.units import format_bytes

TOKEN_BUDGET, TOKEN_BUDGET_REMEDY = "token budget", "raise max_num_batched_tokens"


@dataclass(frozen=True)
class Deployment:
    """What the recommendation is to run on.

    Attributes:
        engine: the serving engine.
        memory: KV memory of the model's requests; ``None`` where the model is unknown.
        tensor_parallel_size, pipeline_parallel_size: GPUs of one replica.
        kv_cache_dtype: of the KV cache, where it is not the engine's default.
        model: the model; ``None`` where unknown.
        memory_bounds: whether the memory's capacity bounds the batch. Measured runs know better:
            they were preempted or they were not.
    """

    engine: Engine
    memory: KvMemory | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_dtype: str | None = None
    model: ModelShape | None = None
    memory_bounds: bool = True


@dataclass(frozen=True)
class Replicas:
    """How many replicas serve a request rate.

    Attributes:
        count: ceil(rate / requests per second of one).
        requests_per_s: what one replica completes at its cap, as predicted.
        utilization: rate / (count x that); near 1, queueing outweighs the latencies shown.
        count_with_confidence: the count at the lower bound of that throughput; ``None`` where it
            has none.
    """

    count: int
    requests_per_s: float
    utilization: float
    count_with_confidence: int | None = None


@dataclass(frozen=True)
class Advice:
    """A recommendation with all that follows from it.

    Attributes:
        decision: the batch cap, what bounds it, and the neighbours.
        objective: what it was chosen by.
        curve: what it was chosen from.
        settings: for the engine.
        kv_bytes: KV cache that the cap needs on each GPU; ``None`` where the model is unknown.
        freed_bytes: what that leaves of the engine's default reservation; ``None`` if unknown.
        memory: the arithmetic behind the two.
        replicas: for the request rate asked about.
        point_estimate: the recommendation without a margin for uncertainty, where there is one.
        notes: assumptions, one sentence each.
    """

    decision: Decision
    objective: Objective
    curve: Curve
    settings: Settings
    kv_bytes: float | None = None
    freed_bytes: float | None = None
    memory: KvMemory | None = None
    replicas: Replicas | None = None
    point_estimate: Candidate | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """A curve to choose from, and what the choice has to respect.

    Attributes:
        curve: throughput and latency of the candidates.
        slos: limits on mean latencies.
        deployment: engine, memory and parallelism; their limits bound the batch too.
        limits: further bounds of the batch.
    """

    curve: Curve
    slos: tuple[Slo, ...]
    deployment: Deployment
    limits: tuple[Limit, ...] = ()


def recommend(
    problem: Problem,
    *,
    rule: Rule = "efficiency",
    epsilon: float = 0.1,
    rate_per_s: float | None = None,
) -> Advice | Infeasible:
    """Choose a batch cap and work out what follows from it.

    Args:
        problem: see `servefit.advise.predicted_problem` and `measured_problem`.
        rule, epsilon: see `servefit.advise.rules`.
        rate_per_s: requests per second to serve, for the number of replicas.

    Raises:
        ServefitError: as `decide`; a rate that is not positive.
    """
    curve, deployment = problem.curve, problem.deployment
    objective = Objective(problem.slos, rule, epsilon)
    limits = (*deployment_limits(deployment), *problem.limits)
    decision = decide(curve, objective, limits)
    if isinstance(decision, Infeasible):
        return decision
    point = None
    if curve.confidence is not None:
        without_margin = decide(curve.at_point_estimate(), objective, limits)
        if isinstance(without_margin, Decision):
            same = int(np.flatnonzero(curve.cap == without_margin.chosen.batch_cap)[0])
            point = candidate_at(curve, same)
    cap, memory = decision.chosen.batch_cap, deployment.memory
    return Advice(
        decision=decision,
        objective=objective,
        curve=curve,
        settings=deployment.engine.write(
            Ask(
                batch_cap=cap,
                context_tokens=curve.tokens_per_request,
                memory=memory,
                tensor_parallel_size=deployment.tensor_parallel_size,
                pipeline_parallel_size=deployment.pipeline_parallel_size,
                kv_cache_dtype=deployment.kv_cache_dtype,
            )
        ),
        kv_bytes=None if memory is None else memory.needed_bytes(cap),
        freed_bytes=None if memory is None else memory.freed_bytes(cap),
        memory=memory,
        replicas=None
        if rate_per_s is None
        else replicas(
            rate_per_s,
            decision.chosen.requests_per_s,
            None
            if curve.confidence is None
            else decision.chosen.throughput_bound / curve.tokens_per_request,
        ),
        point_estimate=point,
        notes=curve.notes,
    )


def deployment_limits(deployment: Deployment) -> list[Limit]:
    """The batch limits of GPU memory and of the engine itself."""
    limits = []
    memory = deployment.memory if deployment.memory_bounds else None
    if memory is not None and memory.capacity_requests is not None:
        remedy = _memory_remedy(deployment, memory)
        limits.append(Limit("KV capacity", memory.capacity_requests, remedy))
    engine = deployment.engine
    if engine.max_batch is not None:
        remedy = "run more replicas, or another engine"
        limits.append(Limit(f"the limit of {engine.name}", engine.max_batch, remedy))
    return limits


def token_budget_limit(
    max_num_batched_tokens: float, input_tokens: float, output_tokens: float
) -> Limit:
    """With chunked prefill a step's token budget bounds the batch: B (1 + IL / OL) <= budget.

    In steady state B running requests decode B tokens a step, and the prompts that replace the
    finished ones bring B IL / OL more.

    Raises:
        ServefitError: the budget is below 1.
    """
    if max_num_batched_tokens < 1:
        raise ServefitError(f"max_num_batched_tokens = {max_num_batched_tokens}: must be positive")
    largest = math.floor(max_num_batched_tokens / (1 + input_tokens / output_tokens))
    return Limit(TOKEN_BUDGET, largest, TOKEN_BUDGET_REMEDY)


def replicas(
    rate_per_s: float, requests_per_s: float, at_least_per_s: float | None = None
) -> Replicas:
    """ceil(rate / requests per second of one replica), at least one.

    Args:
        rate_per_s: requests per second to serve.
        requests_per_s: what one replica completes.
        at_least_per_s: its lower bound, for the count that holds with the curve's confidence.

    Raises:
        ServefitError: the rate is not positive, or no number of replicas serves it.
    """
    count = _replica_count(rate_per_s, requests_per_s)
    sure = None if at_least_per_s is None else _replica_count(rate_per_s, at_least_per_s)
    return Replicas(count, requests_per_s, rate_per_s / requests_per_s / count, sure)


def _replica_count(rate_per_s: float, requests_per_s: float) -> int:
    """A ratio within 1e-9 of a whole number is that number: 1.1 / 0.1 is 11 and not 12."""
    ratio = rate_per_s / requests_per_s
    if not 0 < ratio < math.inf:
        raise ServefitError(f"rate = {rate_per_s:g} requests/s: must be positive and finite")
    nearest = round(ratio)
    whole = nearest if math.isclose(ratio, nearest, rel_tol=1e-9) else math.ceil(ratio)
    return max(1, whole)


def _memory_remedy(deployment: Deployment, memory: KvMemory) -> str:
    """What the memory holds, and what would make room."""
    held = memory.reservation
    if memory.capacity_tokens is not None:
        return (
            f"its KV cache holds {memory.capacity_tokens:g} tokens, and a request needs "
            f"{memory.request_tokens:g}"
        )
    if held is None or deployment.model is None:
        return "give the GPU more memory"
    free = format_bytes(max(held.kv_bytes, 0.0))
    room = (
        f"each GPU of {format_bytes(held.gpu_memory_bytes)} has {free} for KV cache "
        f"(utilisation {held.utilization:g}, {format_bytes(held.weight_bytes)} of weights, "
        f"{format_bytes(held.other_bytes)} of other memory), and a request needs "
        f"{format_bytes(memory.request_bytes)}"
    )
    needed = gpus_needed(deployment.model, memory.request_tokens, held)
    if needed is None:
        return f"{room}; no group of up to {PARALLEL_SIZES[-1]} such GPUs holds one"
    if needed > deployment.tensor_parallel_size:
        return f"{room}; {needed} GPUs hold it: --tensor-parallel-size {needed}"
    return f"{room}; add smaller candidates or GPUs, or use a smaller --kv-cache-dtype"
