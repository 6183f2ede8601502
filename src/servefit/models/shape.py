"""The shape of a decoder-only Transformer and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from servefit.dtypes import bytes_per_number, canonical_dtype


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Layers that share one kind of attention.

    Attributes:
        num_layers: how many layers are of this kind.
        num_kv_heads: key/value heads.
        head_size: width of one query, key or value head; never assumed to be hidden/heads.
        window_tokens: sliding window; ``None`` attends to the whole context.
        latent_size: MLA stores this many numbers a token and layer (c_kv + k_rope), the same on
            every tensor-parallel rank, instead of keys and values by head; ``None`` otherwise.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    window_tokens: int | None = None
    latent_size: int | None = None

    @property
    def kv_numbers_per_token(self) -> int:
        """Numbers that one layer stores for one token: 2 H_kv d_h, or the latent size (MLA)."""
        if self.latent_size is not None:
            return self.latent_size
        return 2 * self.num_kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture-of-experts FFN layers.

    Attributes:
        num_layers: layers whose FFN is a mixture; the others are dense with ``ffn_size``.
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


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a performance law needs to know of a model. Stored once here; the rest is derived.

    Attributes:
        name: as in the runs, usually the HuggingFace name.
        hidden_size, num_attention_heads, vocab_size: D, H_q and the vocabulary.
        attention: groups of layers by attention kind; their counts sum to the number of layers.
        attention_parameters: parameters of all attention blocks, biases included.
        ffn_size: D_ff of the dense FFN layers (0 when every layer is a mixture of experts).
        num_ffn_matrices: 2 (up, down) or 3 (gated: gate, up, down).
        experts: mixture-of-experts layers, if any.
        ffn_bias_parameters: biases of the FFN matrices of all layers.
        tied_embeddings: the LM head is the input embedding.
        embedding_width: width of the embedding table; differs from D only with projections
            (OPT-350M).
        other_parameters: norms, learned positions, embedding projections, routers, sinks.
        weight_dtype, kv_cache_dtype: canonical names, see `servefit.dtypes`.
        stored_weight_bytes: bytes of the weights as stored, where quantisation makes them differ
            from parameters x bytes of ``weight_dtype``; ``None`` otherwise.
        source: where the shape comes from.
    """

    name: str
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    attention: tuple[AttentionGroup, ...]
    attention_parameters: int
    ffn_size: int
    num_ffn_matrices: int
    tied_embeddings: bool
    embedding_width: int
    other_parameters: int
    ffn_bias_parameters: int = 0
    experts: Experts | None = None
    weight_dtype: str = "bfloat16"
    kv_cache_dtype: str = "bfloat16"
    stored_weight_bytes: float | None = None
    source: str = ""

    @property
    def num_layers(self) -> int:
        """L."""
        return sum(group.num_layers for group in self.attention)

    @property
    def num_kv_heads(self) -> int:
        """H_kv of the first attention group."""
        return self.attention[0].num_kv_heads

    @property
    def head_size(self) -> int:
        """d_h of the first attention group."""
        return self.attention[0].head_size

    @property
    def kv_width(self) -> float:
        """D_kv = H_kv d_h (Eq. 4), the mean over layers (MLA: half its latent size)."""
        numbers = sum(g.num_layers * g.kv_numbers_per_token for g in self.attention)
        return numbers / (2 * self.num_layers)

    @property
    def ffn_ratio(self) -> float:
        """r_ff of Eq. 8 = D_ff/D for two matrices; a third (gated) makes it 1.5 x D_ff/D.

        Eq. 8 counts 4 r_ff D^2 FLOPs a token, two matrices. In mixtures the active experts count.
        """
        matrices = 2 * self.hidden_size * self.hidden_size * self.num_layers
        return (self._ffn_parameters(active_only=True) - self.ffn_bias_parameters) / matrices

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token holds in the KV cache, over all layers: 2 L D_kv b_kv (Eq. 11).

        Sliding-window layers are counted as if the window were not full.
        """
        numbers = sum(g.num_layers * g.kv_numbers_per_token for g in self.attention)
        return numbers * bytes_per_number(self.kv_cache_dtype)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding table."""
        return self.vocab_size * self.embedding_width

    @property
    def num_parameters(self) -> int:
        """All parameters."""
        head = 0 if self.tied_embeddings else self.embedding_parameters
        return (
            self.attention_parameters
            + self._ffn_parameters(active_only=False)
            + self.embedding_parameters
            + head
            + self.other_parameters
        )

    @property
    def num_active_parameters(self) -> int:
        """Parameters that take part in one token's step: experts not routed to are left out."""
        unused = self._ffn_parameters(active_only=False) - self._ffn_parameters(active_only=True)
        return self.num_parameters - unused

    @property
    def num_matmul_parameters(self) -> int:
        """Parameters of the matrices that one token is multiplied with, LM head included.

        The input embedding is a look-up and costs no FLOPs; the LM head has the same size.
        """
        return (
            self.attention_parameters
            + self._ffn_parameters(active_only=True)
            + self.embedding_parameters
        )

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in GPU memory, before tensor parallelism."""
        if self.stored_weight_bytes is not None:
            return self.stored_weight_bytes
        return self.num_parameters * bytes_per_number(self.weight_dtype)

    def with_dtypes(
        self, weight_dtype: str | None = None, kv_cache_dtype: str | None = None
    ) -> ModelShape:
        """The same shape in other number formats; raises `ServefitError` for an unknown one."""
        shape = self
        if weight_dtype is not None and canonical_dtype(weight_dtype) != shape.weight_dtype:
            shape = replace(
                shape, weight_dtype=canonical_dtype(weight_dtype), stored_weight_bytes=None
            )
        if kv_cache_dtype is not None:
            shape = replace(shape, kv_cache_dtype=canonical_dtype(kv_cache_dtype))
        return shape

    def _ffn_parameters(self, *, active_only: bool) -> int:
        width_sum = self.ffn_size * self.num_layers
        if self.experts is not None:
            experts = self.experts
            routed = experts.experts_per_token if active_only else experts.num_experts
            width_sum = self.ffn_size * (self.num_layers - experts.num_layers)
            width_sum += experts.num_layers * (routed * experts.ffn_size + experts.shared_ffn_size)
        return self.num_ffn_matrices * self.hidden_size * width_sum + self.ffn_bias_parameters
