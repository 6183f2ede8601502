"""The shape of a decoder-only language model and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from servefit.dtypes import bytes_per_number, canonical_dtype
from servefit.errors import ServefitError
from servefit.models.parts import AttentionGroup, Experts, FloatArray, Parts, RecurrentGroup

#: Parts that weight quantisation leaves in 16 bits.
KEPT_IN_16_BITS = ("other_matrices", "embedding", "lm_head", "lookups", "vectors")


@dataclass(frozen=True)
class ModelShape:
    """What a performance law needs to know of a model. Stored once here; the rest is derived.

    Attributes:
        name: as in the runs, usually the HuggingFace name.
        num_layers: L, layers of every kind.
        hidden_size, num_attention_heads, vocab_size: D, H_q and the vocabulary.
        attention: groups of layers by attention kind; empty in a purely recurrent model.
        parameters: parameters by part.
        ffn_size: D_ff of the (first) dense FFN layer; ``None`` where all are mixtures.
        num_ffn_matrices: 2 (up, down) or 3 (gated: gate, up, down).
        experts: mixture-of-experts layers, if any.
        recurrent: layers with a recurrent state, if any.
        weight_dtype, kv_cache_dtype: canonical names, see `servefit.dtypes`.
        stored_bytes: bytes of the weights as stored, by part, where quantisation makes them differ
            from parameters x bytes of ``weight_dtype``; ``None`` otherwise.
        architecture: the family, as in the config's ``model_type``.
        source: where the shape comes from.
        notes: what a reader should know: parts left out, defaults taken.
        max_context_tokens: positions that the config allows a request; ``None`` where unknown.
        learned_positions: whether there is nothing beyond them; rotary positions can be scaled.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    attention: tuple[AttentionGroup, ...]
    parameters: Parts[int]
    ffn_size: int | None
    num_ffn_matrices: int
    experts: Experts | None = None
    recurrent: tuple[RecurrentGroup, ...] = ()
    weight_dtype: str = "bfloat16"
    kv_cache_dtype: str = "bfloat16"
    stored_bytes: Parts[float] | None = None
    architecture: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    max_context_tokens: int | None = None
    learned_positions: bool = False

    @property
    def num_kv_heads(self) -> int:
        """H_kv of the first attention group; 0 without attention."""
        return self.attention[0].num_kv_heads if self.attention else 0

    @property
    def head_size(self) -> int:
        """d_h of the first attention group; 0 without attention."""
        return self.attention[0].head_size if self.attention else 0

    @property
    def kv_width(self) -> float:
        """D_kv = H_kv d_h (Eq. 4), the mean over all layers (MLA: half its latent size)."""
        return self._kv_numbers_per_token(1) / (2 * self.num_layers)

    @property
    def ffn_ratio(self) -> float:
        """r_ff of Eq. 8 = D_ff/D for two matrices; a third (gated) makes it 1.5 x D_ff/D.

        Eq. 8 counts 4 r_ff D^2 FLOPs a token and layer, those of two matrices. In mixtures the
        active experts count; where layers differ it is their mean.
        """
        matrices = self.parameters.ffn + self._active_expert_parameters
        return matrices / (2 * self.hidden_size**2 * self.num_layers)

    @property
    def tied_embeddings(self) -> bool:
        """Whether the LM head is the input embedding."""
        return self.parameters.lm_head == 0

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding table."""
        return self.parameters.embedding

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        return self.parameters.total

    @property
    def num_active_parameters(self) -> int:
        """Parameters that take part in one token's step: experts not routed to are left out."""
        idle = self.parameters.experts - self._active_expert_parameters
        return self.num_parameters - idle

    @property
    def num_matmul_parameters(self) -> int:
        """Parameters of the matrices that one token is multiplied with, LM head included.

        The input embedding is a look-up and costs no FLOPs, unless it is the LM head as well.
        """
        parts = self.parameters
        return (
            parts.attention
            + parts.recurrent
            + parts.ffn
            + self._active_expert_parameters
            + parts.other_matrices
            + (parts.embedding if self.tied_embeddings else parts.lm_head)
        )

    @cached_property
    def weight_bytes_by_part(self) -> Parts[float]:
        """Bytes of the weights by part.

        Formats under 16 bits hold the matrices of attention, recurrent blocks, FFNs and experts;
        embeddings, LM head, routers and norms stay in 16 bits, as the engines keep them.
        """
        if self.stored_bytes is not None:
            return self.stored_bytes
        size = bytes_per_number(self.weight_dtype)
        kept = max(size, 2.0)
        values = {
            part.name: getattr(self.parameters, part.name)
            * (kept if part.name in KEPT_IN_16_BITS else size)
            for part in fields(Parts)
        }
        return Parts(**values)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in GPU memory, before tensor parallelism."""
        return self.weight_bytes_by_part.total

    def streamed_weight_bytes(self, num_tokens: npt.ArrayLike = 1) -> FloatArray:
        """Bytes of weights that one step over ``num_tokens`` tokens reads from memory.

        All matrices and vectors once, the LM head included; of the input embedding and other
        look-up tables only single rows, taken as nothing (a tied embedding is read as LM head);
        of a mixture's experts the expected distinct ones, see `Experts.expected_distinct`.
        """
        parts = self.weight_bytes_by_part
        looked_up = parts.lookups + (0.0 if self.tied_embeddings else parts.embedding)
        always = parts.total - parts.experts - looked_up
        if self.experts is None:
            return np.full(np.shape(num_tokens), always)
        share = self.experts.expected_distinct(num_tokens) / self.experts.num_experts
        return np.asarray(always + parts.experts * share)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token holds in the KV cache, over all layers: 2 L D_kv b_kv (Eq. 11).

        Sliding-window layers are counted as if the window were not full.
        """
        return self.kv_bytes_per_token_on_rank(1)

    @property
    def kv_bytes_per_token_beyond_windows(self) -> float:
        """Bytes that one more token adds once every window is full: layers without a window."""
        endless = (group for group in self.attention if group.window_tokens is None)
        numbers = sum(group.num_layers * group.kv_numbers_per_token for group in endless)
        return numbers * self._kv_number_bytes

    def kv_bytes_per_token_on_rank(self, tensor_parallel_size: int) -> float:
        """KV bytes of one token on one tensor-parallel rank.

        Heads are sharded, at least one whole head a rank; an MLA latent is whole on every rank.

        Raises:
            ServefitError: ``tensor_parallel_size`` is below 1.
        """
        if tensor_parallel_size < 1:
            raise ServefitError(
                f"tensor_parallel_size = {tensor_parallel_size}: must be at least 1"
            )
        return self._kv_numbers_per_token(tensor_parallel_size) * self._kv_number_bytes

    def splits_evenly(self, tensor_parallel_size: int) -> bool:
        """Whether every rank gets as many query heads, and whole KV heads or a copy of one."""
        size = tensor_parallel_size
        kv_heads = [g.num_kv_heads for g in self.attention if g.latent_size is None]
        return self.num_attention_heads % size == 0 and all(
            max(heads, size) % min(heads, size) == 0 for heads in kv_heads if heads > 0
        )

    def kv_bytes(self, context_tokens: npt.ArrayLike) -> FloatArray:
        """KV bytes that one request of a given context holds.

        Windowed layers keep min(context, window) tokens. Recurrent states come on top, see
        `state_bytes_per_request`.
        """
        return self._over_context(context_tokens, lambda group: group.kv_numbers_per_token)

    def kv_read_bytes(self, context_tokens: npt.ArrayLike) -> FloatArray:
        """KV bytes that one decode step reads for one request of a given context.

        What it holds, and again what layers without a cache of their own read of others'.
        """
        return self._over_context(context_tokens, lambda group: group.kv_numbers_read_per_token)

    @property
    def state_bytes_per_request(self) -> float:
        """Bytes of the recurrent states of one request; 0 in a Transformer."""
        return sum(group.bytes_per_request for group in self.recurrent)

    def prefill_attention_flops(self, input_tokens: npt.ArrayLike) -> FloatArray:
        """FLOPs of causal attention over one prompt: sum over layers of 2 H_q (d_k + d_v) pairs."""
        n = np.asarray(input_tokens, dtype=np.float64)
        total = np.zeros_like(n)
        for group in self.attention:
            total = total + group.num_layers * group.flops_per_pair * group.causal_pairs(n)
        return total

    def decode_attention_flops(self, context_tokens: npt.ArrayLike) -> FloatArray:
        """FLOPs of attention for one new token after ``context_tokens``."""
        context = np.asarray(context_tokens, dtype=np.float64)
        total = np.zeros_like(context)
        for group in self.attention:
            flops = group.num_layers * group.decode_flops_per_pair
            total = total + flops * group.tokens_in_reach(context)
        return total

    def as_served(self, dtype: str | None, kv_cache_dtype: str | None) -> ModelShape:
        """The shape as an engine runs it with its own settings of these names.

        ``auto`` and ``None`` leave what the model says; the KV cache follows the weights. Of
        quantised weights ``dtype`` is what they are computed in, not what is stored.

        Raises:
            ServefitError: a dtype is not known.
        """
        weights, cache = (
            None if name is None or name.lower() == "auto" else name
            for name in (dtype, kv_cache_dtype)
        )
        if self.stored_bytes is not None:
            return self.with_dtypes(kv_cache_dtype=cache)
        return self.with_dtypes(weights, cache or weights)

    def with_dtypes(
        self, weight_dtype: str | None = None, kv_cache_dtype: str | None = None
    ) -> ModelShape:
        """The same shape in other number formats; raises `ServefitError` for an unknown one."""
        shape = self
        if weight_dtype is not None and canonical_dtype(weight_dtype) != shape.weight_dtype:
            shape = replace(shape, weight_dtype=canonical_dtype(weight_dtype), stored_bytes=None)
        if kv_cache_dtype is not None:
            shape = replace(shape, kv_cache_dtype=canonical_dtype(kv_cache_dtype))
        return shape

    def with_note(self, note: str) -> ModelShape:
        """The same shape with one more note."""
        return replace(self, notes=(*self.notes, note))

    @property
    def _active_expert_parameters(self) -> int:
        if self.experts is None:
            return 0
        used = self.parameters.experts * self.experts.experts_per_token
        return used // self.experts.num_experts

    @property
    def _kv_number_bytes(self) -> float:
        return bytes_per_number(self.kv_cache_dtype)

    def _over_context(
        self, context_tokens: npt.ArrayLike, numbers: Callable[[AttentionGroup], int]
    ) -> FloatArray:
        """Bytes of ``numbers(group)`` for each token in reach, over all layers."""
        context = np.asarray(context_tokens, dtype=np.float64)
        total = np.zeros_like(context)
        for group in self.attention:
            each = group.num_layers * numbers(group) * self._kv_number_bytes
            total = total + each * group.tokens_in_reach(context)
        return total

    def _kv_numbers_per_token(self, tensor_parallel_size: int) -> int:
        return sum(
            group.num_layers * group.kv_numbers_per_token_on_rank(tensor_parallel_size)
            for group in self.attention
        )
