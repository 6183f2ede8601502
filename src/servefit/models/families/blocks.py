"""Building blocks that the families share. Modules are named as in HuggingFace checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.parts import AttentionGroup, Experts


def decoder(
    config: Config,
    layer: Callable[[Blueprint, int], None],
    *,
    norms: int = 2,
    norm_bias: bool = False,
    head_bias: bool = False,
    final_norm: bool = True,
) -> Blueprint:
    """A decoder: embedding, ``layer`` for each layer with ``norms`` of the hidden size, LM head."""
    blueprint = Blueprint(config)
    norm = blueprint.hidden_size * (2 if norm_bias else 1)
    for index in range(blueprint.num_layers):
        layer(blueprint, index)
        blueprint.vector(norms * norm)
    blueprint.vector(norm if final_norm else 0)
    embeddings(blueprint, head_bias=head_bias)
    return blueprint


def embeddings(blueprint: Blueprint, *, width: int | None = None, head_bias: bool = False) -> None:
    """The input embedding, and the LM head where it has weights of its own."""
    vocabulary, width = blueprint.vocab_size, width or blueprint.hidden_size
    blueprint.matrix("embedding", "embed_tokens", vocabulary, width)
    if not blueprint.config.flag("tie_word_embeddings"):
        blueprint.matrix("lm_head", "lm_head", vocabulary, width)
    blueprint.vector(vocabulary if head_bias else 0)


def head_size(config: Config) -> int:
    """The config's head size, else hidden/heads where that is whole."""
    size = config.optional_size("head_dim")
    if size is not None:
        return size
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        raise config.error(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}: give head_dim"
        )
    return hidden // heads


def kv_heads(config: Config, key: str = "num_key_value_heads") -> int:
    """The number of KV heads; one for each query head where the config says nothing."""
    heads = config.size("num_attention_heads")
    shared = config.optional_size(key) or heads
    if heads % shared:
        raise config.error(f"num_attention_heads {heads} is not a multiple of {key} {shared}")
    return shared


def windows(
    config: Config,
    default: Callable[[int], bool] = lambda layer: False,
    *,
    key: str = "sliding_window",
    label: str = "sliding_attention",
) -> list[int | None]:
    """Each layer's attention window, from ``layer_types`` or else by the family's ``default``."""
    layers = config.layers()
    types = layer_types(config, {label: True, "full_attention": False})
    windowed = types or [default(layer) for layer in range(layers)]
    return [config.optional_size(key) if narrow else None for narrow in windowed]


def layer_types(config: Config, meanings: dict[str, bool]) -> list[bool] | None:
    """``layer_types`` translated; ``None`` where the config has none."""
    types = config.strings("layer_types", "layers_block_type")
    if types is None:
        return None
    if len(types) != config.layers():
        raise config.error(f"layer_types has {len(types)} entries for {config.layers()} layers")
    unknown = next((kind for kind in types if kind not in meanings), None)
    if unknown is not None:
        raise config.error(f"layer type {unknown!r} is not known; known are {', '.join(meanings)}")
    return [meanings[kind] for kind in types]


def attention(
    blueprint: Blueprint,
    layer: int,
    *,
    num_kv_heads: int | None = None,
    width: int | None = None,
    window_tokens: int | None = None,
    bias: bool = False,
    output_bias: bool | None = None,
    qk_norm: bool = False,
    gated: bool = False,
    block: str = "self_attn",
) -> None:
    """Multi-head or grouped-query attention; heads and their size are the config's.

    Args:
        blueprint: the model.
        layer: which layer.
        num_kv_heads, width: KV heads and head size where the family finds them elsewhere.
        window_tokens: of a sliding window.
        bias: on queries, keys, values and output.
        output_bias: on the output, where that differs.
        qk_norm: norms of one head's width for queries and keys.
        gated: a gate beside the queries.
        block: name of the block in the checkpoint.
    """
    config, hidden = blueprint.config, blueprint.hidden_size
    heads = config.size("num_attention_heads")
    kv = kv_heads(config) if num_kv_heads is None else num_kv_heads
    size = head_size(config) if width is None else width
    queries = 2 * heads * size if gated else heads * size
    last_bias = bias if output_bias is None else output_bias
    name = f"layers.{layer}.{block}."
    blueprint.matrix("attention", name + "q_proj", queries, hidden, bias=bias)
    blueprint.matrix("attention", name + "k_proj", kv * size, hidden, bias=bias)
    blueprint.matrix("attention", name + "v_proj", kv * size, hidden, bias=bias)
    blueprint.matrix("attention", name + "o_proj", hidden, heads * size, bias=last_bias)
    blueprint.vector(2 * size if qk_norm else 0)
    blueprint.attends(
        AttentionGroup(
            num_layers=1,
            num_query_heads=heads,
            num_kv_heads=kv,
            head_size=size,
            window_tokens=window_tokens,
        )
    )


def gated_ffn(blueprint: Blueprint, name: str, size: int, *, bias: bool = False) -> None:
    """A gated FFN: three matrices."""
    hidden = blueprint.hidden_size
    blueprint.matrix("ffn", f"{name}.gate_proj", size, hidden, bias=bias)
    blueprint.matrix("ffn", f"{name}.up_proj", size, hidden, bias=bias)
    blueprint.matrix("ffn", f"{name}.down_proj", hidden, size, bias=bias)


def dense_ffn(blueprint: Blueprint, layer: int, size: int, *, bias: bool = False) -> None:
    """The gated FFN of a dense layer."""
    blueprint.dense(size)
    gated_ffn(blueprint, f"layers.{layer}.mlp", size, bias=bias)


def plain_ffn(blueprint: Blueprint, up: str, down: str, size: int, *, bias: bool = False) -> None:
    """The plain FFN of a dense layer: two matrices."""
    blueprint.num_ffn_matrices = 2
    blueprint.dense(size)
    blueprint.matrix("ffn", up, size, blueprint.hidden_size, bias=bias)
    blueprint.matrix("ffn", down, blueprint.hidden_size, size, bias=bias)


def mixture(
    blueprint: Blueprint,
    name: str,
    experts: Experts,
    *,
    router: str = "gate",
    bias: bool = False,
) -> None:
    """Routed, gated experts and their router; shared experts are the caller's."""
    hidden, size, count = blueprint.hidden_size, experts.ffn_size, experts.num_experts
    blueprint.mixes(experts)
    first = f"{name}.experts.0."
    blueprint.matrix("experts", first + "gate_proj", size, hidden, bias=bias, copies=count)
    blueprint.matrix("experts", first + "up_proj", size, hidden, bias=bias, copies=count)
    blueprint.matrix("experts", first + "down_proj", hidden, size, bias=bias, copies=count)
    blueprint.matrix("other_matrices", f"{name}.{router}", count, hidden, bias=bias)
