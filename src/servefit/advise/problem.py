"""From a calibration or from measured runs to the problem that the advisor solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from servefit.advise.advisor import (
    TOKEN_BUDGET,
    TOKEN_BUDGET_REMEDY,
    Deployment,
    Problem,
    deployment_limits,
    token_budget_limit,
)
from servefit.advise.candidates import candidate_caps, every_batch
from servefit.advise.curve import Curve, predicted_curve
from servefit.advise.decision import Limit
from servefit.advise.reference import LatencyAt, measured_latency, predicted_latency
from servefit.advise.servable import require_servable
from servefit.advise.settings import ENGINES, Engine
from servefit.advise.slo import RelativeSlo, Slo
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.laws.step.running import batch_limits
from servefit.memory import KvMemory, Mix
from servefit.models import ModelShape
from servefit.points import Points, Serving


@dataclass(frozen=True)
class Terms:
    """How the model is to be served.

    Attributes:
        engine: whose settings are wanted; its KV blocks and default reservation count.
        gpu_memory_utilization: share of the GPU's memory that the engine may use.
        other_bytes: activations, CUDA graphs and runtime on each GPU; ``None`` is unknown.
        max_num_batched_tokens: token budget of a step under chunked prefill, where it bounds.
        kv_capacity_tokens: tokens that the KV cache holds, as the engine's log says; ``None``
            takes what the GPU's memory leaves.
        fit_probability: with which running requests of mixed lengths must fit the KV cache.
        kv_cache_dtype: of the KV cache, where it is not the engine's default.
        candidates: batch caps to choose from; ``None`` tries every integer that fits.
    """

    engine: Engine = ENGINES["vllm"]
    gpu_memory_utilization: float = 0.9
    other_bytes: float | None = None
    max_num_batched_tokens: int | None = None
    kv_capacity_tokens: float | None = None
    fit_probability: float = 0.99
    kv_cache_dtype: str | None = None
    candidates: npt.ArrayLike | None = None


def predicted_problem(
    calibration: Calibration,
    points: Points,
    slos: Sequence[Slo | RelativeSlo] = (),
    terms: Terms = Terms(),
    *,
    confidence: float | None = None,
) -> Problem:
    """SLIM-BCA, or with any other law: choose on the predicted curve.

    Args:
        calibration: a fitted law.
        points: one point: model, accelerator, lengths, parallelism and schedule; its batch is
            ignored. Lengths that are mixed (`Points.with_workload`) are so in memory too.
        slos: limits on mean latencies.
        terms: how the model is to be served.
        confidence: see `predicted_curve`.

    Raises:
        ServefitError: terms, candidates or confidence out of range.
        UnservableError: see `servefit.advise.servable`.
    """
    serving = points.serving or Serving()
    notes = require_servable(
        points, engine=terms.engine.name, max_num_batched_tokens=terms.max_num_batched_tokens
    )
    deployment = _deployment(
        terms,
        points.models[0],
        points.hardware[0],
        float(points.input_tokens + points.output_tokens),
        int(points.tensor_parallel_size),
        pipeline_parallel_size=serving.pipeline_parallel_size,
        mix=_mix(points, terms),
    )
    serving = _as_capped(serving, terms, deployment.memory)
    served = replace(points, serving=serving)
    limits = _scheduled_token_budget(served, serving)
    if terms.candidates is None:
        bounds = [limit.max_batch for limit in (*deployment_limits(deployment), *limits)]
        caps = every_batch(min(bounds, default=None))
    else:
        caps = candidate_caps(terms.candidates)
    curve = predicted_curve(calibration, served, caps, confidence=confidence)
    return Problem(
        curve=replace(curve, notes=(*curve.notes, *notes)),
        slos=_absolute(slos, predicted_latency(calibration, served)),
        deployment=deployment,
        limits=limits,
    )


def measured_problem(
    curve: Curve,
    slos: Sequence[Slo | RelativeSlo] = (),
    terms: Terms = Terms(),
    *,
    model: ModelShape | None = None,
    hardware: Hardware,
    tensor_parallel_size: int = 1,
    limits: Sequence[Limit] = (),
    preemptions_known: bool = False,
) -> Problem:
    """Full-profile BCA: choose on the measured curve.

    Args:
        curve: see `servefit.advise.measured.measured_runs`.
        slos: limits on mean latencies; reference points are among the measured caps.
        terms: how the model is to be served; candidates are among the measured caps.
        model: for the memory advice, which an unknown model goes without.
        hardware: where it runs.
        tensor_parallel_size: GPUs that share the model.
        limits: what the runs themselves show, such as preemptions.
        preemptions_known: the runs say whether they fitted, and no arithmetic is needed for it.

    Raises:
        ServefitError: as `predicted_problem`.
    """
    candidates = curve if terms.candidates is None else curve.only(candidate_caps(terms.candidates))
    return Problem(
        curve=candidates,
        slos=_absolute(slos, measured_latency(curve)),
        deployment=_deployment(
            terms,
            model,
            hardware,
            curve.tokens_per_request,
            tensor_parallel_size,
            memory_bounds=not preemptions_known,
        ),
        limits=(*limits, *_token_budget(terms, curve.input_tokens, curve.output_tokens)),
    )


def _deployment(
    terms: Terms,
    model: ModelShape | None,
    hardware: Hardware,
    context_tokens: float,
    tensor_parallel_size: int,
    *,
    pipeline_parallel_size: int = 1,
    memory_bounds: bool = True,
    mix: Mix | None = None,
) -> Deployment:
    memory = None
    if model is not None:
        memory = terms.engine.memory(
            model,
            hardware,
            context_tokens,
            tensor_parallel_size=tensor_parallel_size,
            pipeline_parallel_size=pipeline_parallel_size,
            mix=mix,
            capacity_tokens=terms.kv_capacity_tokens,
            utilization=terms.gpu_memory_utilization,
            other_bytes=terms.other_bytes,
        )
    return Deployment(
        engine=terms.engine,
        memory=memory,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        kv_cache_dtype=terms.kv_cache_dtype,
        model=model,
        memory_bounds=memory_bounds,
    )


def _mix(points: Points, terms: Terms) -> Mix | None:
    """Contexts of running requests of a workload; those of a static batch end all at once."""
    context, sd = points.mean_context_tokens, points.context_sd_tokens
    static = points.serving is not None and points.serving.static.any()
    if context is None or sd is None or static:
        return None
    return Mix(float(context), float(sd), terms.fit_probability)


def _as_capped(serving: Serving, terms: Terms, memory: KvMemory | None) -> Serving:
    """The schedule with the batch as a cap, the token budget, and the memory as it was worked out.

    What the KV cache holds counts in tokens a request needs on average, windows included.
    """
    budget, tokens = terms.max_num_batched_tokens, np.nan
    if budget is not None and budget < 1:
        raise ServefitError(f"max_num_batched_tokens = {budget}: must be positive")
    if memory is not None and memory.capacity_bytes is not None and memory.request_bytes > 0:
        tokens = max(memory.capacity_bytes, 0.0) / memory.request_bytes * memory.request_tokens
    return replace(
        serving,
        batch_is_cap=True,
        kv_capacity_tokens=np.asarray(tokens),
        max_num_batched_tokens=np.asarray(np.nan if budget is None else float(budget)),
    )


def _token_budget(terms: Terms, input_tokens: float, output_tokens: float) -> tuple[Limit, ...]:
    if terms.max_num_batched_tokens is None:
        return ()
    return (token_budget_limit(terms.max_num_batched_tokens, input_tokens, output_tokens),)


def _scheduled_token_budget(points: Points, serving: Serving) -> tuple[Limit, ...]:
    """The same for a schedule of which more is known: none where prompts are not chunked."""
    largest = float(batch_limits(points, serving)[TOKEN_BUDGET])
    if np.isnan(largest):
        return ()
    return (Limit(TOKEN_BUDGET, int(largest), TOKEN_BUDGET_REMEDY),)


def _absolute(slos: Sequence[Slo | RelativeSlo], latency_at: LatencyAt) -> tuple[Slo, ...]:
    return tuple(s.resolve(latency_at) if isinstance(s, RelativeSlo) else s for s in slos)
