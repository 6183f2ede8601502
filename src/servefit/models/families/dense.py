"""Dense Transformers: OPT, Falcon, Llama and its relatives, Phi, Gemma."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import (
    attention,
    decoder,
    dense_ffn,
    embeddings,
    head_size,
    kv_heads,
    plain_ffn,
    windows,
)

#: OPT keeps two rows of its position table for padding.
OPT_POSITION_OFFSET = 2


def opt(config: Config) -> Blueprint:
    """OPT: learned positions, plain FFN, biases everywhere; 350M projects its embeddings.

    With ``do_layer_norm_before`` false (350M) there is no final norm.
    """
    blueprint = Blueprint(config)
    hidden, heads = blueprint.hidden_size, config.size("num_attention_heads")
    bias = config.flag("enable_bias")
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine") else 0
    for layer in range(blueprint.num_layers):
        attention(
            blueprint,
            layer,
            num_kv_heads=heads,
            head_size=head_size(config),
            qkv_bias=bias,
            output_bias=bias,
        )
        name = f"layers.{layer}."
        plain_ffn(blueprint, name + "fc1", name + "fc2", config.size("ffn_dim"), bias=bias)
        blueprint.vector(2 * norm)
    if config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm"):
        blueprint.vector(norm)
    width = config.optional_size("word_embed_proj_dim") or hidden
    if width != hidden:
        blueprint.matrix("other_matrices", "project_in", hidden, width)
        blueprint.matrix("other_matrices", "project_out", width, hidden)
    positions = config.size("max_position_embeddings") + OPT_POSITION_OFFSET
    blueprint.vector(positions * hidden, part="lookups")
    embeddings(blueprint, width=width)
    return blueprint


def falcon(config: Config) -> Blueprint:
    """Falcon: one KV head with ``multi_query``; the new decoder has ``num_kv_heads`` of them."""
    new = config.flag("new_decoder_architecture")
    heads = config.size("num_attention_heads")
    shared = 1 if config.flag("multi_query") else heads
    if new:
        shared = kv_heads(config, "num_kv_heads")
    bias = config.flag("bias")
    size = config.optional_size("ffn_hidden_size") or 4 * config.size("hidden_size")
    if new:
        norms = config.optional_size("num_ln_in_parallel_attn") or 2
    else:
        norms = 1 if config.flag("parallel_attn") else 2

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            block="self_attention",
            num_heads=heads,
            num_kv_heads=shared,
            head_size=head_size(config),
            qkv_bias=bias,
            output_bias=bias,
        )
        name = f"layers.{index}.mlp.dense_"
        plain_ffn(blueprint, name + "h_to_4h", name + "4h_to_h", size, bias=bias)

    return decoder(config, layer, norms=norms, norm_bias=True)


def llama(config: Config) -> Blueprint:
    """Llama 2 and 3, and Granite."""
    bias = config.flag("attention_bias")
    return _gated(config, qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias"))


def mistral(config: Config) -> Blueprint:
    """Mistral: a sliding window on every layer, if any; Phi-3 and Phi-4 share this shape."""
    return _gated(config, layer_windows=windows(config, lambda layer: True))


def qwen2(config: Config) -> Blueprint:
    """Qwen2 and Qwen2.5: biases on queries, keys and values; windows on the upper layers."""
    return _gated(config, qkv_bias=True, layer_windows=qwen_windows(config))


def qwen3(config: Config) -> Blueprint:
    """Qwen3: norms on queries and keys, a head size of its own."""
    bias = config.flag("attention_bias")
    return _gated(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        layer_windows=qwen_windows(config),
    )


def qwen_windows(config: Config) -> list[int | None]:
    """Qwen's windows: from layer ``max_window_layers`` on, if ``use_sliding_window`` says so."""
    if not config.flag("use_sliding_window"):
        return [None] * config.layers()
    first = config.optional_size("max_window_layers", least=0) or 0
    return windows(config, lambda layer: layer >= first)


def gemma(config: Config) -> Blueprint:
    """Gemma: Llama with a head size of its own."""
    bias = config.flag("attention_bias")
    return _gated(config, qkv_bias=bias, output_bias=bias)


def gemma2(config: Config) -> Blueprint:
    """Gemma 2: every other layer has a window, the first one included; four norms a layer."""
    bias = config.flag("attention_bias")
    return _gated(
        config,
        qkv_bias=bias,
        output_bias=bias,
        norms=4,
        layer_windows=windows(config, lambda layer: layer % 2 == 0),
    )


def gemma3(config: Config) -> Blueprint:
    """Gemma 3: five windowed layers to a full one; norms on queries and keys."""
    bias = config.flag("attention_bias")
    config.refuse("use_bidirectional_attention", "an encoder keeps no KV cache")
    pattern = config.size("sliding_window_pattern")
    return _gated(
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        norms=4,
        layer_windows=windows(config, lambda layer: (layer + 1) % pattern != 0),
    )


def phi(config: Config) -> Blueprint:
    """Phi-1, 1.5 and 2: attention beside a plain FFN, biases everywhere, LM head included."""
    size = config.size("intermediate_size")
    width = head_size(config)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=width,
            qkv_bias=True,
            output_bias=True,
        )
        blueprint.vector(4 * width if config.flag("qk_layernorm") else 0)
        name = f"layers.{index}.mlp."
        plain_ffn(blueprint, name + "fc1", name + "fc2", size, bias=True)

    return decoder(config, layer, norms=1, norm_bias=True, head_bias=True)


def nemotron_nas(config: Config) -> Blueprint:
    """Nemotron NAS (DeciLM): each layer's blocks are listed, and may be missing."""
    blocks = config.sections("block_configs")
    blueprint = Blueprint(config)
    if len(blocks) != blueprint.num_layers:
        raise config.error(f"block_configs: {len(blocks)} blocks, {blueprint.num_layers} layers")
    hidden = blueprint.hidden_size
    for index, block in enumerate(blocks):
        _nas_attention(blueprint, index, _required(block, "attention"))
        _nas_ffn(blueprint, index, _required(block, "ffn"))
    blueprint.vector(hidden)
    embeddings(blueprint)
    return blueprint


def _nas_attention(blueprint: Blueprint, index: int, block: Config) -> None:
    config, hidden = blueprint.config, blueprint.hidden_size
    if block.flag("no_op"):
        return
    blueprint.vector(hidden)
    if block.flag("replace_with_linear"):
        blueprint.matrix("ffn", f"layers.{index}.self_attn.linear_attn", hidden, hidden)
        return
    for key in ("sparsify", "num_sink_tokens", "unshifted_sink"):
        block.refuse(key, "its KV cache is not known")
    heads, group = config.size("num_attention_heads"), block.size("n_heads_in_group")
    if heads % group:
        raise block.error(f"n_heads_in_group {group}: must divide {heads} attention heads")
    bias = config.flag("attention_bias")
    attention(
        blueprint,
        index,
        num_kv_heads=heads // group,
        head_size=head_size(config),
        window_tokens=block.optional_size("window_length"),
        qkv_bias=bias,
        output_bias=bias,
    )


def _nas_ffn(blueprint: Blueprint, index: int, block: Config) -> None:
    hidden = blueprint.hidden_size
    if block.flag("no_op"):
        return
    blueprint.vector(hidden)
    if block.flag("replace_with_linear"):
        blueprint.matrix("ffn", f"layers.{index}.mlp.linear_mlp", hidden, hidden)
        return
    for key in ("sparsify", "moe"):
        block.refuse(key, "its shape is not known")
    size = block.optional_size("intermediate_size")
    if size is None:  # two thirds of ffn_mult x hidden, rounded up to a multiple of 256
        size = -(-int(2 * block.number("ffn_mult") * hidden / 3) // 256) * 256
    dense_ffn(blueprint, index, size, bias=blueprint.config.flag("mlp_bias"))


def _required(block: Config, key: str) -> Config:
    section = block.section(key)
    if section is None:
        raise block.error(f"{key} is missing")
    return section


def _gated(
    config: Config,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    norms: int = 2,
    layer_windows: list[int | None] | None = None,
) -> Blueprint:
    """Layers of grouped-query attention and a gated FFN."""

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index] if layer_windows else None,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            qk_norm=qk_norm,
        )
        dense_ffn(blueprint, index, config.size("intermediate_size"), bias=mlp_bias)

    return decoder(config, layer, norms=norms)
