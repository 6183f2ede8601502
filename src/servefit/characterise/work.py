"""FLOPs and bytes of one engine step by kernel class, by formula.

For n tokens of which m are sampled, b requests decoding on A tokens of context together (Eq. 3),
L layers, t ranks, a bytes an activation:

    class              FLOPs                          bytes
    attention decode   2 H_q (d_k + d_v) A L / t      KV read + queries and outputs, 2 b H_q d_h a L
    attention prefill  the same x causal pairs        queries, keys, values, outputs; cached KV read
    projections        2 P_attention n / t            P_attention bytes + inputs and outputs
    FFN                2 P_ffn n / t                  P_ffn bytes + inputs and outputs
    LM head            2 D V m / t                    D V bytes + m (D + V) a
    other              one a number moved             norms, residual sums, activation, rotary, KV
                                                      written, embedding rows

Weights, KV cache and FLOPs are those of the step law (`servefit.laws.step.work`), here at a rate of
one FLOP and one byte a second; what it leaves out, activations in and out of each kernel, is added.
Every kernel is taken to read its inputs and write its outputs once, in a step of its own. The
activations of latent attention (MLA) and of recurrent layers are counted as those of plain blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from servefit.dtypes import BYTES_PER_NUMBER, bytes_per_number
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.laws.step.work import Steps, step_cost
from servefit.models import ModelShape
from servefit.points import FloatArray

#: Kernel classes of a step, in the order of tables and figures.
ATTENTION_DECODE, ATTENTION_PREFILL = "attention decode", "attention prefill"
PROJECTIONS, FFN, LM_HEAD, OTHER = "QKV/O projections", "FFN", "LM head", "other"
CLASSES = (ATTENTION_DECODE, ATTENTION_PREFILL, PROJECTIONS, FFN, LM_HEAD, OTHER)
#: At these peaks a cost in seconds is one in FLOPs or bytes.
_UNIT = Hardware(
    "one a second",
    peak_flops_per_s=dict.fromkeys(BYTES_PER_NUMBER, 1.0),
    memory_bandwidth_bytes_per_s=1.0,
    link_bandwidth_bytes_per_s=1.0,
)


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of DRAM traffic on one rank; arrays with one entry a step."""

    flops: FloatArray
    bytes: FloatArray

    @property
    def intensity(self) -> FloatArray:
        """FLOPs a byte; NaN where nothing is moved."""
        nothing = np.full_like(self.flops, np.nan)
        return np.divide(self.flops, self.bytes, out=nothing, where=self.bytes > 0)

    def seconds(self, hardware: Hardware, dtype: str) -> FloatArray:
        """Least time on the roofline: max(FLOPs / F, bytes / BW), of known peaks."""
        flops_per_s, bytes_per_s = peaks(hardware, dtype)
        return np.maximum(self.flops / flops_per_s, self.bytes / bytes_per_s)


def peaks(hardware: Hardware, dtype: str) -> tuple[float, float]:
    """Peak FLOP/s of arithmetic on ``dtype`` and bytes/s.

    A CPU, whose peak is measured in float32, computes every dtype at that; raises `ServefitError`
    where a peak is unknown.
    """
    flops = hardware.peak_flops(dtype) or hardware.peak_flops_per_s.get("float32")
    if flops is None or hardware.memory_bandwidth_bytes_per_s is None:
        raise ServefitError(
            f"hardware {hardware.name}: a roofline needs its peak FLOP/s and bandwidth: describe "
            "it as name=...,flops=...,bandwidth=..."
        )
    return flops, hardware.memory_bandwidth_bytes_per_s


def prefill_step(batch: FloatArray, input_tokens: FloatArray) -> Steps:
    """All prompts of a batch in one step; arrays of one entry a point."""
    return _steps(len(batch), prefill_tokens=batch * input_tokens, prefill_requests=batch)


def decode_step(batch: FloatArray, context_tokens: FloatArray) -> Steps:
    """One decode step of ``batch`` requests, each attending to ``context_tokens`` (IL + y)."""
    return _steps(len(batch), decode_requests=batch, decode_context_tokens=batch * context_tokens)


def _steps(count: int, **given: FloatArray) -> Steps:
    zero, one = np.zeros(count), np.ones(count)
    names = ("prefill_tokens", "prefill_requests", "prefill_kv_tokens", "decode_requests")
    values = {name: given.get(name, zero) for name in (*names, "decode_context_tokens")}
    return Steps(
        row=np.arange(count), count=one, drafts=zero, context_sd=zero, prompt_spread=one, **values
    )


def work_by_class(
    model: ModelShape, steps: Steps, tensor_parallel_size: int = 1
) -> Mapping[str, Work]:
    """Work of each step by class, on one rank; the formulas are the module's.

    Args:
        model: shape and number formats.
        steps: pure prefill or pure decode steps, or mixed ones.
        tensor_parallel_size: t.
    """
    t = tensor_parallel_size
    a = max(bytes_per_number(model.weight_dtype), 2.0)
    decode = step_cost(model, _UNIT, t, _only(steps, decode=True))
    prefill = step_cost(model, _UNIT, t, _only(steps, decode=False))
    tokens = steps.prefill_tokens + steps.decode_requests
    sampled = steps.prefill_requests + steps.decode_requests
    parts = model.weight_bytes_by_part
    head = model.embedding_parameters if model.tied_embeddings else model.parameters.lm_head
    head_bytes = parts.embedding if model.tied_embeddings else parts.lm_head
    query, kv = _attention_widths(model)
    blocks = model.parameters.attention + model.parameters.recurrent
    ffn = model.num_matmul_parameters - head - blocks
    experts = parts.experts
    if model.experts is not None:
        share = model.experts.expected_distinct(tokens) / model.experts.num_experts
        ffn_bytes = parts.ffn + parts.other_matrices + experts * share
    else:
        ffn_bytes = np.full_like(tokens, parts.ffn + parts.other_matrices)
    inner = ffn / max(1, model.num_ffn_matrices) / model.hidden_size
    d, layers = model.hidden_size, model.num_layers
    some = (tokens > 0).astype(np.float64)

    def io(numbers: FloatArray | float, of: FloatArray) -> FloatArray:
        return np.asarray(numbers * of * a / t)

    moved = layers * 8 * d * tokens * a + io(model.num_ffn_matrices * inner, tokens)
    moved = moved + (0.0 if parts.lookups else io(2 * (query + kv / 2), tokens))
    moved = moved + tokens * model.kv_bytes_per_token_on_rank(t) + 2 * tokens * d * a
    return {
        ATTENTION_DECODE: Work(
            decode.kv_flops_s, decode.kv_s + io(2 * query, steps.decode_requests)
        ),
        ATTENTION_PREFILL: Work(
            prefill.attention_flops_s,
            prefill.kv_s + io(2 * query + kv, steps.prefill_tokens),
        ),
        PROJECTIONS: Work(
            2.0 * blocks * tokens / t,
            some * (parts.attention + parts.recurrent) / t
            + io(2 * query + kv, tokens)
            + 2 * layers * d * tokens * a,
        ),
        FFN: Work(
            2.0 * ffn * tokens / t,
            some * ffn_bytes / t
            + io(model.num_ffn_matrices * inner, tokens)
            + 2 * layers * d * tokens * a,
        ),
        LM_HEAD: Work(
            2.0 * head * sampled / t,
            some * head_bytes / t + sampled * (d + model.vocab_size / t) * a,
        ),
        OTHER: Work(moved / a, moved + some * parts.vectors / t),
    }


def total(works: Mapping[str, Work]) -> Work:
    """The sum over classes."""
    return Work(
        np.asarray(sum(w.flops for w in works.values())),
        np.asarray(sum(w.bytes for w in works.values())),
    )


def _attention_widths(model: ModelShape) -> tuple[float, float]:
    """Numbers of one token's queries (H_q d_h), and of its keys and values, over all layers."""
    query = sum(g.num_layers * g.num_query_heads * g.head_size for g in model.attention)
    kv = sum(g.num_layers * g.kv_numbers_read_per_token for g in model.attention)
    return float(query), float(kv)


def _only(steps: Steps, *, decode: bool) -> Steps:
    """The decoding requests of the steps, or their prompts."""
    zero = np.zeros_like(steps.count)
    if decode:
        return replace(steps, prefill_tokens=zero, prefill_requests=zero, prefill_kv_tokens=zero)
    return replace(steps, decode_requests=zero, decode_context_tokens=zero)
