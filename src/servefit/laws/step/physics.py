"""The time of one engine step, as a pure function of what it processes.

    S = launch + host + gemm + kv + attention + communication

    launch        = step_s + layer_s L + prefill_layer_s L [prompt tokens in the step]
    host          = prompt_s m + sequence_s (b + m) + context_token_s A
    gemm          = (weights^3 + compute^3)^(1/3)
      weights     = streamed weight bytes / (t weight_bandwidth_efficiency BW)
      compute     = FLOPs of prompt tokens / (prefill_efficiency t F)
                  + FLOPs of decode tokens / (decode_efficiency t F)
    kv            = KV bytes / (kv_bandwidth_efficiency BW), a smooth maximum with its FLOPs
    attention     = prompt attention FLOPs / (prefill_efficiency t F)
    communication = [t > 1] all-reduces (all_reduce_s + bytes / (link_efficiency BW_link))

for m prompts, b decoding requests that read A tokens, L layers, t ranks. Weights are read once a
step whatever the batch; where the batch is small that is the floor, where it is large the matrices
are bound by compute, and the exponent says how sharply one takes over from the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from servefit.laws.step.work import Cost
from servefit.points import FloatArray

#: Sharpness of the smooth maximum of memory and compute time: 1 adds them, infinity overlaps them.
SMOOTHNESS = 3.0

Theta = Mapping[str, float]


def step_terms(theta: Theta, cost: Cost) -> dict[str, FloatArray]:
    """Seconds of each step by cause; they sum to the step's time.

    Args:
        theta: parameter values by name, see `servefit.laws.step.parameters`.
        cost: the steps' cost at peak rates.
    """
    flops = theta["peak_flops_factor"]
    bandwidth = theta["peak_bandwidth_factor"]
    weights_s = cost.weights_s / (theta["weight_bandwidth_efficiency"] * bandwidth)
    compute_s = (
        cost.prefill_flops_s / theta["prefill_efficiency"]
        + cost.decode_flops_s / theta["decode_efficiency"]
    ) / flops
    gemm_s = smooth_maximum(weights_s, compute_s)
    with np.errstate(invalid="ignore"):
        weights_share = np.nan_to_num((weights_s / gemm_s) ** SMOOTHNESS)
    return {
        "overhead": theta["step_s"]
        + theta["layer_s"] * cost.layers
        + theta["prefill_layer_s"] * cost.prefill_layers
        + theta["prompt_s"] * cost.prompts
        + theta["sequence_s"] * cost.sequences
        + theta["context_token_s"] * cost.context_tokens,
        "weights": gemm_s * weights_share,
        "compute": gemm_s * (1 - weights_share)
        + cost.attention_flops_s / (theta["prefill_efficiency"] * flops),
        "KV cache": smooth_maximum(
            cost.kv_s / (theta["kv_bandwidth_efficiency"] * bandwidth),
            cost.kv_flops_s / (theta["decode_efficiency"] * flops),
        ),
        "communication": theta["all_reduce_s"] * cost.all_reduces
        + cost.link_s / (theta["link_efficiency"] * theta["peak_link_factor"]),
    }


def smooth_maximum(a: FloatArray, b: FloatArray) -> FloatArray:
    """(a^p + b^p)^(1/p) with p = `SMOOTHNESS`, of times of zero or more."""
    larger = np.maximum(a, b)
    ratio = np.divide(np.minimum(a, b), larger, out=np.zeros_like(larger), where=larger > 0)
    return np.asarray(larger * (1 + ratio**SMOOTHNESS) ** (1 / SMOOTHNESS))
