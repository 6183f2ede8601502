"""What one engine step processes, and what that costs at full efficiency.

Everything here is free of calibrated parameters: counts, bytes and FLOPs by the model's shape, and
the seconds that they take at the accelerator's peaks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from servefit.dtypes import bytes_per_number
from servefit.hardware import Hardware
from servefit.models import AttentionGroup, ModelShape
from servefit.points import FloatArray, IntArray

#: Peaks of an accelerator of which nothing is known; the law then calibrates a factor on each.
NOMINAL_FLOPS_PER_S = 500e12
NOMINAL_BYTES_PER_S = 2.5e12
NOMINAL_LINK_BYTES_PER_S = 450e9


@dataclass(frozen=True)
class Steps:
    """Steps by what they process; arrays of one dimension, one entry a kind of step.

    Attributes:
        row: which point or row the step belongs to.
        count: how many such steps it runs; need not be whole.
        prefill_tokens: prompt tokens computed in the step.
        prefill_requests: prompts that they belong to; a share of one for a chunk of a prompt.
        prefill_kv_tokens: tokens of those prompts that were cached before.
        decode_requests: requests that decode.
        decode_context_tokens: KV-cache tokens that these read, over all of them.
        drafts: tokens that each of them proposes beside its own (speculative decoding).
        context_sd: standard deviation of one decode's context over the steps and requests.
        prompt_spread: E[n^2] / E[n]^2 of the prompts' lengths n.
    """

    row: IntArray
    count: FloatArray
    prefill_tokens: FloatArray
    prefill_requests: FloatArray
    prefill_kv_tokens: FloatArray
    decode_requests: FloatArray
    decode_context_tokens: FloatArray
    drafts: FloatArray
    context_sd: FloatArray
    prompt_spread: FloatArray

    def take(self, index: IntArray) -> Steps:
        """The steps at these positions."""
        return Steps(*(getattr(self, f.name)[index] for f in fields(self)))


def concatenate(parts: list[Steps]) -> Steps:
    """All steps of several."""
    return Steps(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Steps)))


@dataclass(frozen=True)
class Cost:
    """A step's cost at peak rates on one rank; arrays as in `Steps`. Seconds unless named.

    Attributes:
        layers: transformer layers, whose kernels are launched one after another.
        prefill_layers: the same in a step that has prompt tokens, else 0.
        sequences: tokens that the step samples, one a request unless it speculates.
        prompts: prompts in it.
        context_tokens: tokens whose cache entries are looked up.
        weights_s: reading the weights once.
        prefill_flops_s: GEMM FLOPs of prompt tokens.
        decode_flops_s: GEMM FLOPs of decode tokens, and the LM head of all sampled ones.
        kv_s: reading the KV cache: decodes' context, and earlier chunks or cached prefixes; of
            recurrent layers, reading and writing their states.
        kv_flops_s: attention FLOPs of decode tokens.
        attention_flops_s: attention of prompt tokens.
        all_reduces: all-reduces across ranks; 0 on one.
        link_s: their bytes over the link.
    """

    layers: FloatArray
    prefill_layers: FloatArray
    sequences: FloatArray
    prompts: FloatArray
    context_tokens: FloatArray
    weights_s: FloatArray
    prefill_flops_s: FloatArray
    decode_flops_s: FloatArray
    kv_s: FloatArray
    kv_flops_s: FloatArray
    attention_flops_s: FloatArray
    all_reduces: FloatArray
    link_s: FloatArray


def step_cost(
    model: ModelShape, hardware: Hardware, tensor_parallel_size: int, steps: Steps
) -> Cost:
    """Cost of steps of one model on one kind of accelerator, per rank of t.

        weights    = (streamed bytes, experts by their expected number) / t / BW
        GEMM FLOPs = 2 (matrix parameters) n / t / F       n tokens; LM head only for sampled ones
        KV         = (bytes a token and rank, within each layer's window) x tokens read / BW,
                     and twice the recurrent states of each request / t / BW
        attention  = 2 H_q (d_k + d_v) x (query, context) pairs / t / F
        all-reduce = 2 L, of n D numbers each: 2 (t-1)/t n D b / BW_link

    Args:
        model: shape and number formats.
        hardware: peaks; nominal ones stand in where they are unknown.
        tensor_parallel_size: t.
        steps: what is processed.
    """
    t = tensor_parallel_size
    flops_per_s = hardware.peak_flops(model.weight_dtype) or NOMINAL_FLOPS_PER_S
    bytes_per_s = hardware.memory_bandwidth_bytes_per_s or NOMINAL_BYTES_PER_S
    link_bytes_per_s = hardware.link_bandwidth_bytes_per_s or NOMINAL_LINK_BYTES_PER_S
    decode_tokens = steps.decode_requests * (1 + steps.drafts)
    tokens = steps.prefill_tokens + decode_tokens
    sampled = decode_tokens + steps.prefill_requests
    head = model.embedding_parameters if model.tied_embeddings else model.parameters.lm_head
    body = model.num_matmul_parameters - head
    activation = max(bytes_per_number(model.weight_dtype), 2.0)
    reduces = 2.0 * model.num_layers if t > 1 else 0.0
    return Cost(
        layers=np.full_like(tokens, model.num_layers),
        prefill_layers=np.where(steps.prefill_tokens > 0, float(model.num_layers), 0.0),
        sequences=sampled,
        prompts=steps.prefill_requests,
        context_tokens=steps.decode_context_tokens + steps.prefill_kv_tokens,
        weights_s=model.streamed_weight_bytes(tokens) / t / bytes_per_s,
        prefill_flops_s=2.0 * body * steps.prefill_tokens / t / flops_per_s,
        decode_flops_s=2.0 * (body * decode_tokens + head * sampled) / t / flops_per_s,
        kv_s=_kv_bytes_read(model, t, steps) / bytes_per_s,
        kv_flops_s=_decode_attention_flops(model, steps) / t / flops_per_s,
        attention_flops_s=_prefill_attention_flops(model, steps) / t / flops_per_s,
        all_reduces=np.full_like(tokens, reduces),
        link_s=reduces
        * (2 * (t - 1) / t)
        * tokens
        * model.hidden_size
        * activation
        / link_bytes_per_s,
    )


def _kv_bytes_read(model: ModelShape, tensor_parallel_size: int, steps: Steps) -> FloatArray:
    """Bytes of KV cache that a rank reads: per layer kind, tokens within reach x bytes a token."""
    context = _per_request(steps.decode_context_tokens, steps.decode_requests)
    cached = _per_request(steps.prefill_kv_tokens, steps.prefill_requests)
    numbers = np.zeros_like(context)
    for group in model.attention:
        a_token = group.num_layers * group.kv_numbers_per_token_on_rank(tensor_parallel_size)
        tokens = steps.decode_requests * mean_reach(group, context, steps.context_sd)
        tokens = tokens + steps.prefill_requests * group.tokens_in_reach(cached)
        numbers = numbers + a_token * tokens
    states = 2 * model.state_bytes_per_request / tensor_parallel_size
    updated = steps.decode_requests + steps.prefill_requests
    return numbers * bytes_per_number(model.kv_cache_dtype) + states * updated


def mean_reach(group: AttentionGroup, mean: FloatArray, sd: FloatArray) -> FloatArray:
    """E[min(context, window)] over decodes whose contexts have this mean and spread.

    The context is taken as uniform on mean -/+ sqrt(3) sd, which it is for equal requests, whose
    context grows from IL to IL + OL. With a window w and the ends a < w < b that is
    [(w^2 - a^2) / 2 + (b - w) w] / (b - a).
    """
    if group.window_tokens is None:
        return mean
    half = np.minimum(np.sqrt(3.0) * sd, mean)
    low, high = mean - half, mean + half
    turn = np.clip(float(group.window_tokens), low, high)
    area = (turn**2 - low**2) / 2 + (high - turn) * group.window_tokens
    exact = np.divide(area, 2 * half, out=np.zeros_like(mean), where=half > 1e-9 * (1 + mean))
    return np.where(half > 1e-9 * (1 + mean), exact, group.tokens_in_reach(mean))


def _decode_attention_flops(model: ModelShape, steps: Steps) -> FloatArray:
    context = _per_request(steps.decode_context_tokens, steps.decode_requests)
    flops = np.zeros_like(context)
    for group in model.attention:
        reach = mean_reach(group, context, steps.context_sd)
        flops = flops + group.num_layers * group.decode_flops_per_pair * reach
    return steps.decode_requests * (1 + steps.drafts) * flops


def _prefill_attention_flops(model: ModelShape, steps: Steps) -> FloatArray:
    """Pairs of a prompt of n new tokens after k cached ones: causal(k + n) - causal(k).

    m prompts of mixed lengths with s = E[n^2] / E[n]^2 have the pairs of m / s prompts of s n.
    """
    spread = steps.prompt_spread
    new = spread * _per_request(steps.prefill_tokens, steps.prefill_requests)
    cached = spread * _per_request(steps.prefill_kv_tokens, steps.prefill_requests)
    flops = model.prefill_attention_flops(cached + new) - model.prefill_attention_flops(cached)
    return steps.prefill_requests / spread * flops


def _per_request(tokens: FloatArray, requests: FloatArray) -> FloatArray:
    return np.divide(tokens, requests, out=np.zeros_like(tokens), where=requests > 0)


def cost_of(
    steps: Steps,
    models: tuple[ModelShape, ...],
    hardware: tuple[Hardware, ...],
    model_index: IntArray,
    hardware_index: IntArray,
    tensor_parallel_size: FloatArray,
) -> Cost:
    """Cost of steps of several models, accelerators and degrees of tensor parallelism.

    The last three arrays have one entry a row; ``steps.row`` points into them.
    """
    if len(models) == len(hardware) == 1 and np.ptp(tensor_parallel_size) == 0:
        return step_cost(models[0], hardware[0], int(tensor_parallel_size[0]), steps)
    keys = np.stack([model_index, hardware_index, tensor_parallel_size.astype(np.int64)], axis=-1)
    groups, group_of_row = np.unique(keys, axis=0, return_inverse=True)
    group_of_step = group_of_row.reshape(-1)[steps.row]
    whole = {f.name: np.empty(len(steps.row)) for f in fields(Cost)}
    for number, (model, accelerator, t) in enumerate(groups.tolist()):
        index = np.flatnonzero(group_of_step == number)
        part = step_cost(models[model], hardware[accelerator], t, steps.take(index))
        for name, values in whole.items():
            values[index] = getattr(part, name)
    return Cost(**whole)
