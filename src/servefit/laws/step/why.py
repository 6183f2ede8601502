"""Why a point is as fast as it is: what one decode step is made of, and where the batch leads.

    S(B)       = launch + weights + compute + KV(B) + ...        a pure decode step of B requests
    bandwidth  = (weight bytes + KV bytes) / (BW S)              achieved share of the peak
    FLOP/s     = (matrix and attention FLOPs) / (F S)
    knee       = B with KV(B) = step_s + layer_s L + weights(B) + all-reduce latency
    plateau    = lim T(B) for B -> infinity, at this context, with room for it

Up to the knee a further request mostly shares what is paid anyway; beyond it mostly adds its own
cache to be read. Nothing lifts throughput above the plateau but shorter contexts, fewer KV bytes a
token, or a faster GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.step.law import StepLaw
from servefit.laws.step.parameters import completed
from servefit.laws.step.physics import Theta, step_terms
from servefit.laws.step.running import flatten, mean_context
from servefit.laws.step.schedule import run_schedule
from servefit.laws.step.work import Cost, Steps, cost_of
from servefit.points import FloatArray, Points, Serving

#: A batch that stands for infinity: whatever does not grow with it is below a millionth there.
ENDLESS_BATCH = 1e12
#: Fixed-point steps for the knee; a dense model needs two, experts some more.
KNEE_STEPS = 60


@dataclass(frozen=True)
class Why:
    """What a pure decode step of each point is made of; arrays have the points' shape.

    Attributes:
        decode_step_s: its time, S.
        terms_s: seconds by cause; they sum to it. With pipeline stages: of one micro-batch.
        bandwidth_fraction, flops_fraction: achieved shares of the accelerator's peaks; NaN where
            these are unknown.
        knee_batch: batch at which reading the KV cache takes as long as all that does not grow
            with the batch; infinite where nothing is read.
        plateau_tokens_per_s: total throughput that an endless batch would reach.
    """

    decode_step_s: FloatArray
    terms_s: Mapping[str, FloatArray]
    bandwidth_fraction: FloatArray
    flops_fraction: FloatArray
    knee_batch: FloatArray
    plateau_tokens_per_s: FloatArray


def why(calibration: Calibration, points: Points) -> Why:
    """Explain points by a calibrated step law.

    Raises:
        ServefitError: the calibration is of another law, which has no steps.
    """
    if calibration.law != StepLaw.name:
        raise ServefitError(
            f"{calibration.law}: has no engine steps to explain a point by; calibrate --law step"
        )
    theta = completed({p.name: p.value for p in calibration.parameters})
    flat, serving = flatten(points)
    stages = serving.pipeline_parallel_size
    batch = run_schedule(flat, serving).batch
    cost = _cost(decode_steps(flat, serving, np.maximum(batch / stages, 1.0)), flat)
    terms = step_terms(theta, cost)
    step_s = sum(terms.values(), start=np.zeros(()))
    known = np.array([h.has_known_peaks for h in flat.hardware])[flat.hardware_index]
    flops_s = cost.prefill_flops_s + cost.decode_flops_s
    flops_s = flops_s + cost.attention_flops_s + cost.kv_flops_s

    def shaped(values: FloatArray) -> FloatArray:
        return values.reshape(points.shape)

    return Why(
        decode_step_s=shaped(step_s),
        terms_s={name: shaped(seconds) for name, seconds in terms.items()},
        bandwidth_fraction=shaped(np.where(known, (cost.weights_s + cost.kv_s) / step_s, np.nan)),
        flops_fraction=shaped(np.where(known, flops_s / step_s, np.nan)),
        knee_batch=shaped(stages * knee_batch(theta, flat, serving)),
        plateau_tokens_per_s=plateau_tokens_per_s(calibration, points),
    )


def decode_steps(points: Points, serving: Serving, batch: FloatArray) -> Steps:
    """One pure decode step of ``batch`` requests for each of some points of one dimension."""
    context, sd = mean_context(points), points.context_sd_tokens
    nothing = np.zeros(len(batch))
    return Steps(
        row=np.arange(len(batch)),
        count=np.ones(len(batch)),
        prefill_tokens=nothing,
        prefill_requests=nothing,
        prefill_kv_tokens=nothing,
        decode_requests=batch,
        decode_context_tokens=batch * context,
        drafts=np.full(len(batch), float(serving.draft_tokens)),
        context_sd=points.output_tokens / np.sqrt(12.0) if sd is None else sd,
        prompt_spread=np.ones(len(batch)),
    )


def knee_batch(theta: Theta, points: Points, serving: Serving) -> FloatArray:
    """Batch at which the KV term equals the part of a decode step that does not grow with it.

        B k = step_s + layer_s L + weights(B) + all-reduces x latency

    k is the KV time of one request. Weights are the same at every batch, except that a larger one
    meets more of a mixture's experts: the equation is solved from B = 1 up, by repetition.
    """
    batch = np.ones(len(points.batch))
    for _ in range(KNEE_STEPS):
        cost = _cost(decode_steps(points, serving, batch), points)
        shared_s = (
            theta["step_s"]
            + theta["layer_s"] * cost.layers
            + cost.weights_s
            / (theta["weight_bandwidth_efficiency"] * theta["peak_bandwidth_factor"])
            + theta["all_reduce_s"] * cost.all_reduces
        )
        each_s = step_terms(theta, cost)["KV cache"] / batch
        found = np.divide(shared_s, each_s, out=np.full_like(batch, np.inf), where=each_s > 0)
        if np.allclose(found, batch, rtol=1e-9):
            break
        batch = np.where(np.isfinite(found), found, 1.0)
    return found


def plateau_tokens_per_s(calibration: Calibration, points: Points) -> FloatArray:
    """Total throughput as the batch goes to infinity: T at `ENDLESS_BATCH`.

    With memory for it and no token budget: how the prompts are scheduled stays as it is.
    """
    given = points.serving or Serving()
    room = np.asarray(np.inf)
    endless = replace(given, kv_capacity_tokens=room, batch_is_cap=False)
    if not given.static.any():
        endless = replace(endless, max_num_batched_tokens=room)
    answer = StepLaw().predict(
        calibration, replace(points, batch=np.asarray(ENDLESS_BATCH), serving=endless)
    )
    return np.broadcast_to(answer.total_tokens_per_s, points.shape)


def _cost(steps: Steps, points: Points) -> Cost:
    return cost_of(
        steps,
        points.models,
        points.hardware,
        points.model_index,
        points.hardware_index,
        points.tensor_parallel_size,
    )
