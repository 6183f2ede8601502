"""Building blocks that the families share. Module names are those of HuggingFace checkpoints."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.shape import AttentionGroup


def head_size(config: Config, num_heads: int, key: str = "head_dim") -> int:
    """The config's head size, else hidden/heads where that is whole."""
    if key in config:
        return config.size(key)
    hidden = config.size("hidden_size")
    if hidden % num_heads:
        raise config.error(
            f"hidden_size {hidden} is not a multiple of {num_heads} attention heads: give {key}"
        )
    return hidden // num_heads


def kv_heads(config: Config, num_heads: int, default: int | None = None) -> int:
    """The number of KV heads; by default one for each query head."""
    heads = config.size("num_key_value_heads", num_heads if default is None else default)
    if num_heads % heads:
        raise config.error(
            f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {heads}"
        )
    return heads


def attention(
    blueprint: Blueprint,
    layer: int,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    window_tokens: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: int = 0,
) -> None:
    """Multi-head or grouped-query attention.

    ``qk_norm`` is the number of parameters of the norms of queries and keys together.
    """
    hidden = blueprint.hidden_size
    prefix = f"layers.{layer}.self_attn."
    width, kv_width = num_heads * head_size, num_kv_heads * head_size
    blueprint.num_attention_heads = max(blueprint.num_attention_heads, num_heads)
    blueprint.matrix("attention", prefix + "q_proj", width, hidden, bias=qkv_bias)
    blueprint.matrix("attention", prefix + "k_proj", kv_width, hidden, bias=qkv_bias)
    blueprint.matrix("attention", prefix + "v_proj", kv_width, hidden, bias=qkv_bias)
    blueprint.matrix("attention", prefix + "o_proj", hidden, width, bias=output_bias)
    blueprint.vector(qk_norm)
    blueprint.attends(
        AttentionGroup(
            num_layers=1,
            num_query_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_size=head_size,
            window_tokens=window_tokens,
        )
    )


def gated_ffn(
    blueprint: Blueprint, name: str, size: int, *, bias: bool = False, hidden: int | None = None
) -> None:
    """A gated FFN: three matrices."""
    width = hidden or blueprint.hidden_size
    blueprint.matrix("ffn", f"{name}.gate_proj", size, width, bias=bias)
    blueprint.matrix("ffn", f"{name}.up_proj", size, width, bias=bias)
    blueprint.matrix("ffn", f"{name}.down_proj", width, size, bias=bias)


def plain_ffn(blueprint: Blueprint, up: str, down: str, size: int, *, bias: bool = False) -> None:
    """A plain FFN: two matrices."""
    blueprint.matrix("ffn", up, size, blueprint.hidden_size, bias=bias)
    blueprint.matrix("ffn", down, blueprint.hidden_size, size, bias=bias)


def routed_experts(
    blueprint: Blueprint,
    name: str,
    *,
    count: int,
    size: int,
    matrices: tuple[str, str, str],
    router: str,
    bias: bool = False,
) -> None:
    """The routed experts of one layer, gated, and their router."""
    hidden = blueprint.hidden_size
    gate, up, down = (f"{name}.experts.*.{matrix}" for matrix in matrices)
    blueprint.matrix("experts", gate, size, hidden, bias=bias, copies=count)
    blueprint.matrix("experts", up, size, hidden, bias=bias, copies=count)
    blueprint.matrix("experts", down, hidden, size, bias=bias, copies=count)
    blueprint.matrix("other_matrices", f"{name}.{router}", count, hidden, bias=bias)


def embeddings(
    blueprint: Blueprint, *, tied: bool, width: int | None = None, head_bias: bool = False
) -> None:
    """The input embedding, and the LM head where it has weights of its own."""
    vocabulary, width = blueprint.vocab_size, width or blueprint.hidden_size
    blueprint.matrix("embedding", "embed_tokens", vocabulary, width)
    if not tied:
        blueprint.matrix("lm_head", "lm_head", vocabulary, width, bias=head_bias)
