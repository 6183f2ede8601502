"""From a calibration or from measured runs to the problem that the advisor solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy.typing as npt

from servefit.advise.advisor import (
    Deployment,
    Problem,
    deployment_limits,
    token_budget_limit,
)
from servefit.advise.candidates import candidate_caps, every_batch
from servefit.advise.curve import Curve, predicted_curve
from servefit.advise.decision import Limit
from servefit.advise.reference import LatencyAt, measured_latency, predicted_latency
from servefit.advise.settings import ENGINES, Engine
from servefit.advise.slo import RelativeSlo, Slo
from servefit.calibration import Calibration
from servefit.hardware import Hardware
from servefit.models import ModelShape
from servefit.points import Points


@dataclass(frozen=True)
class Terms:
    """How the model is to be served.

    Attributes:
        engine: whose settings are wanted; its KV blocks and default reservation count.
        gpu_memory_utilization: share of the GPU's memory that the engine may use.
        other_bytes: activations, CUDA graphs and runtime on each GPU; ``None`` is unknown.
        max_num_batched_tokens: token budget of a step under chunked prefill, where it bounds.
        kv_cache_dtype: of the KV cache, where it is not the engine's default.
        candidates: batch caps to choose from; ``None`` tries every integer that fits.
    """

    engine: Engine = ENGINES["vllm"]
    gpu_memory_utilization: float = 0.9
    other_bytes: float | None = None
    max_num_batched_tokens: int | None = None
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
        points: one point: model, accelerator, lengths and parallelism; its batch is ignored.
        slos: limits on mean latencies.
        terms: how the model is to be served.
        confidence: see `predicted_curve`.

    Raises:
        ServefitError: terms, candidates or confidence out of range.
    """
    input_tokens, output_tokens = float(points.input_tokens), float(points.output_tokens)
    deployment = _deployment(
        terms,
        points.models[0],
        points.hardware[0],
        input_tokens + output_tokens,
        int(points.tensor_parallel_size),
    )
    limits = _token_budget(terms, input_tokens, output_tokens)
    if terms.candidates is None:
        bounds = [limit.max_batch for limit in (*deployment_limits(deployment), *limits)]
        caps = every_batch(min(bounds, default=None))
    else:
        caps = candidate_caps(terms.candidates)
    return Problem(
        curve=predicted_curve(calibration, points, caps, confidence=confidence),
        slos=_absolute(slos, predicted_latency(calibration, points)),
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
    memory_bounds: bool = True,
) -> Deployment:
    memory = None
    if model is not None:
        memory = terms.engine.memory(
            model,
            hardware,
            context_tokens,
            tensor_parallel_size=tensor_parallel_size,
            utilization=terms.gpu_memory_utilization,
            other_bytes=terms.other_bytes,
        )
    return Deployment(
        engine=terms.engine,
        memory=memory,
        tensor_parallel_size=tensor_parallel_size,
        kv_cache_dtype=terms.kv_cache_dtype,
        model=model,
        memory_bounds=memory_bounds,
    )


def _token_budget(terms: Terms, input_tokens: float, output_tokens: float) -> tuple[Limit, ...]:
    if terms.max_num_batched_tokens is None:
        return ()
    return (token_budget_limit(terms.max_num_batched_tokens, input_tokens, output_tokens),)


def _absolute(slos: Sequence[Slo | RelativeSlo], latency_at: LatencyAt) -> tuple[Slo, ...]:
    return tuple(s.resolve(latency_at) if isinstance(s, RelativeSlo) else s for s in slos)
