"""What a `ModelShape` is made of: kinds of layers, and parameters by part."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from servefit.dtypes import bytes_per_number

FloatArray = npt.NDArray[np.float64]
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that share one kind of attention.

    Attributes:
        num_layers: how many layers are of this kind.
        num_kv_heads: key/value heads.
        head_size: width of one query or key head; never assumed to be hidden/heads.
        window_tokens: sliding window or attention chunk; ``None`` attends to the whole context.
        latent_size: MLA stores this many numbers a token and layer (c_kv + k_rope), the same on
            every tensor-parallel rank, instead of keys and values by head; ``None`` otherwise.
        num_query_heads: query heads.
        value_head_size: width of one value head where it differs from ``head_size``.
        latent_value_size: the part of the latent that serves as values (c_kv).
        owns_cache: whether it stores keys and values; otherwise it reads those of earlier layers.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    window_tokens: int | None = None
    latent_size: int | None = None
    num_query_heads: int = 0
    value_head_size: int | None = None
    latent_value_size: int = 0
    owns_cache: bool = True

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that one layer stores for one token: H_kv (d_k + d_v), or the latent (MLA)."""
        return self.kv_numbers_per_token_on_rank(1)

    def kv_numbers_per_token_on_rank(self, tensor_parallel_size: int) -> int:
        """The same on one tensor-parallel rank: at least one whole KV head; an MLA latent whole."""
        return self._kv_numbers(tensor_parallel_size) if self.owns_cache else 0

    @property
    def kv_numbers_read_per_token(self) -> int:
        """Numbers that one layer reads of one token, its own or those of an earlier layer."""
        return self._kv_numbers(1)

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of one layer for one (query token, context token) pair: 2 H_q (d_k + d_v)."""
        return 2 * self.num_query_heads * (self.head_size + self._value_head_size)

    @property
    def decode_flops_per_pair(self) -> int:
        """The same in decode; MLA attends on its latent there: 2 H_q (2 c_kv + k_rope)."""
        if self.latent_size is None:
            return self.flops_per_pair
        return 2 * self.num_query_heads * (self.latent_size + self.latent_value_size)

    def tokens_in_reach(self, context_tokens: npt.ArrayLike) -> FloatArray:
        """Context tokens that these layers keep and read: min(context, window).

        Chunked attention reads between one token and a whole chunk; the chunk is its upper bound.
        """
        context = np.asarray(context_tokens, dtype=np.float64)
        return context if self.window_tokens is None else np.minimum(context, self.window_tokens)

    def causal_pairs(self, input_tokens: npt.ArrayLike) -> FloatArray:
        """(query, context) pairs of a prompt: n(n+1)/2, or with a window w < n: wn - w(w-1)/2."""
        n = np.asarray(input_tokens, dtype=np.float64)
        w = self.tokens_in_reach(n)
        return w * n - w * (w - 1) / 2

    def _kv_numbers(self, tensor_parallel_size: int) -> int:
        if self.latent_size is not None:
            return self.latent_size
        heads = -(-self.num_kv_heads // tensor_parallel_size)
        return heads * (self.head_size + self._value_head_size)

    @property
    def _value_head_size(self) -> int:
        return self.head_size if self.value_head_size is None else self.value_head_size


@dataclass(frozen=True, slots=True)
class RecurrentGroup:
    """Layers that keep a state of fixed size for each request instead of keys and values.

    Attributes:
        num_layers: how many layers are of this kind.
        kind: the layer's name in its field ("mamba", "mamba2", "gated delta net").
        conv_numbers, state_numbers: numbers of one layer's convolution and recurrent state.
        conv_dtype, state_dtype: their dtypes.
    """

    num_layers: int
    kind: str
    conv_numbers: int
    state_numbers: int
    conv_dtype: str = "bfloat16"
    state_dtype: str = "bfloat16"

    @property
    def bytes_per_request(self) -> float:
        """Bytes of the states that these layers keep for one request."""
        conv = self.conv_numbers * bytes_per_number(self.conv_dtype)
        return self.num_layers * (conv + self.state_numbers * bytes_per_number(self.state_dtype))


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture-of-experts FFN layers.

    Attributes:
        num_layers: layers that have a mixture.
        num_experts: routed experts in such a layer.
        experts_per_token: routed experts that one token uses.
        ffn_size: width of one routed expert.
        shared_ffn_size: total width of the experts that every token uses.
    """

    num_layers: int
    num_experts: int
    experts_per_token: int
    ffn_size: int
    shared_ffn_size: int = 0

    def expected_distinct(self, num_tokens: npt.ArrayLike) -> FloatArray:
        """Distinct experts that a step over n tokens reads in one layer: E (1 - (1 - k/E)^n).

        Every token picks k of E uniformly and on its own, which is an upper bound.
        """
        n = np.asarray(num_tokens, dtype=np.float64)
        missed = 1 - self.experts_per_token / self.num_experts
        return np.asarray(self.num_experts * (1 - missed**n))


@dataclass(frozen=True, slots=True)
class Parts(Generic[Number]):
    """Parameters, or their bytes, by what a step does with them. Each is in exactly one field.

    Attributes:
        attention: matrices of attention blocks.
        recurrent: matrices of recurrent blocks.
        ffn: matrices of dense FFNs and of shared experts.
        experts: routed experts, all of them.
        other_matrices: further matrices that each token passes: routers, embedding projections.
        embedding: the input embedding table.
        lm_head: the LM head; 0 where it is the input embedding.
        lookups: further tables of which a token reads a row: learned positions.
        vectors: norms, biases, sinks and other parameters that are no matrices.
    """

    attention: Number
    recurrent: Number
    ffn: Number
    experts: Number
    other_matrices: Number
    embedding: Number
    lm_head: Number
    lookups: Number
    vectors: Number

    @property
    def total(self) -> Number:
        """The sum."""
        numbers: tuple[Number, ...] = astuple(self)
        return sum(numbers)
