"""What runs at once: known facts of the schedule completed, and the limits of a batch cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from servefit.memory import kv_capacity_tokens
from servefit.points import FloatArray, Points, Serving


def batch_limits(points: Points, serving: Serving) -> dict[str, FloatArray]:
    """The batch that each limit allows; the least of them runs. NaN is unknown and does not bind.

        max_num_seqs   the cap itself; the only one of a static batch, which runs in waves
        KV capacity    (capacity - h IL) / (mean context - h IL)
        token budget   s budget / (1 + g + (1 - h) IL tau / OL)        with chunked prefill

    The last says that a step must hold the 1 + g tokens of each decode and its share
    B (1 - h) IL tau / OL of prompt tokens; without speculation, prefix hits and pipeline stages it
    is budget / (1 + IL / OL). Prefix hits are taken to be one prefix that all requests share.
    """
    shared = serving.prefix_hit_rate * points.input_tokens
    tau = tokens_per_step(serving.draft_tokens, serving.acceptance_rate)
    a_step = 1 + serving.draft_tokens + (points.input_tokens - shared) * tau / points.output_tokens
    chunked = ~serving.static & (serving.chunked_prefill != 0)
    budget = serving.pipeline_parallel_size * serving.max_num_batched_tokens
    by_memory = (serving.kv_capacity_tokens - shared) / (mean_context(points) - shared)
    return {
        "max_num_seqs": points.batch,
        "KV capacity": np.where(serving.static, np.nan, by_memory),
        "token budget": np.where(chunked, budget / a_step, np.nan),
    }


def effective_batch(limits: Mapping[str, FloatArray]) -> FloatArray:
    """The least of `batch_limits`, though one request runs whatever they say."""
    cap = limits["max_num_seqs"]
    least = np.fmin(np.fmin(cap, limits["KV capacity"]), limits["token budget"])
    return np.fmax(least, np.fmin(cap, 1.0))


def flatten(points: Points) -> tuple[Points, Serving]:
    """The points as arrays of one dimension, with everything that is known of their serving.

    Where it was not given, the KV capacity is what the accelerator's memory leaves by default.
    """
    shape = points.shape

    def flat(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(values, shape).ravel()

    given = points.serving or Serving()

    def flat_if_known(values: FloatArray | None) -> FloatArray | None:
        return None if values is None else flat(values)

    flat_points = replace(
        points,
        model_index=flat(points.model_index),
        hardware_index=flat(points.hardware_index),
        input_tokens=flat(points.input_tokens),
        output_tokens=flat(points.output_tokens),
        batch=flat(points.batch),
        tensor_parallel_size=flat(points.tensor_parallel_size),
        mean_context_tokens=flat_if_known(points.mean_context_tokens),
        context_sd_tokens=flat_if_known(points.context_sd_tokens),
        prompt_spread=flat_if_known(points.prompt_spread),
        serving=None,
    )
    capacity = flat(given.kv_capacity_tokens)
    return flat_points, replace(
        given,
        static=flat(given.static),
        chunked_prefill=flat(given.chunked_prefill),
        max_num_batched_tokens=flat(given.max_num_batched_tokens),
        kv_capacity_tokens=np.where(
            np.isnan(capacity),
            _default_capacity_tokens(flat_points, given.pipeline_parallel_size),
            capacity,
        ),
    )


def _default_capacity_tokens(points: Points, pipeline_parallel_size: int) -> FloatArray:
    """Tokens that the KV cache holds by default; NaN where the memory is unknown."""
    capacity = np.full(len(points.batch), np.nan)
    for m, model in enumerate(points.models):
        for h, accelerator in enumerate(points.hardware):
            if accelerator.memory_bytes is None:
                continue
            here = (points.model_index == m) & (points.hardware_index == h)
            for t in np.unique(points.tensor_parallel_size[here]).tolist():
                capacity[here & (points.tensor_parallel_size == t)] = kv_capacity_tokens(
                    model,
                    accelerator.memory_bytes,
                    tensor_parallel_size=int(t),
                    pipeline_parallel_size=pipeline_parallel_size,
                )
    return capacity


def mean_context(points: Points) -> FloatArray:
    """Mean active context of a running request: as measured, or IL + (OL + 1) / 2 (Eq. 12)."""
    if points.mean_context_tokens is not None:
        return points.mean_context_tokens
    return points.input_tokens + (points.output_tokens + 1) / 2


def tokens_per_step(draft_tokens: float, acceptance_rate: float) -> float:
    """tau = (1 - a^(g+1)) / (1 - a) tokens of one verify step (Leviathan et al. 2023, Eq. 1)."""
    if acceptance_rate >= 1:
        return draft_tokens + 1.0
    return float((1 - acceptance_rate ** (draft_tokens + 1)) / (1 - acceptance_rate))
