"""Mixtures of experts with keys and values by head."""

from __future__ import annotations

from collections.abc import Callable

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import (
    attention,
    decoder,
    dense_ffn,
    gated_ffn,
    head_size,
    kv_heads,
    layer_types,
    mixture,
    windows,
)
from servefit.models.families.dense import qwen_windows
from servefit.models.shape import AttentionGroup, Experts


def local_experts(config: Config, shared_ffn_size: int = 0) -> Experts:
    """The mixture of configs that count ``num_local_experts`` of ``intermediate_size``."""
    return Experts(
        num_layers=1,
        num_experts=config.size("num_local_experts", "num_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        ffn_size=config.size("intermediate_size"),
        shared_ffn_size=shared_ffn_size,
    )


def mixtral(config: Config) -> Blueprint:
    """Mixtral: every FFN is a mixture."""
    layer_windows = windows(config, lambda layer: True)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index],
        )
        mixture(blueprint, f"layers.{index}.block_sparse_moe", local_experts(config))

    return decoder(config, layer)


def phimoe(config: Config) -> Blueprint:
    """Phi-3.5-MoE: Mixtral with biases in attention, norms and LM head."""
    layer_windows = windows(config, lambda layer: True)
    bias = config.flag("attention_bias")

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index],
            qkv_bias=bias,
            output_bias=bias,
        )
        mixture(blueprint, f"layers.{index}.block_sparse_moe", local_experts(config))

    return decoder(config, layer, norm_bias=True, head_bias=config.flag("lm_head_bias"))


def granite_moe(config: Config) -> Blueprint:
    """Granite MoE."""
    bias = config.flag("attention_bias")

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            qkv_bias=bias,
            output_bias=bias,
        )
        mixture(blueprint, f"layers.{index}.block_sparse_moe", local_experts(config))

    return decoder(config, layer)


def minimax_m2(config: Config) -> Blueprint:
    """MiniMax-M2: norms over all queries and all keys, a bias on the router's scores."""
    shared, width = kv_heads(config), head_size(config)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, num_kv_heads=shared, head_size=width)
        blueprint.vector((config.size("num_attention_heads") + shared) * width)
        experts = local_experts(config)
        mixture(blueprint, f"layers.{index}.block_sparse_moe", experts)
        blueprint.vector(experts.num_experts)

    blueprint = decoder(config, layer)
    if config.flag("use_mtp"):
        blueprint.notes.append("its multi-token-prediction modules are not counted")
    return blueprint


def gpt_oss(config: Config) -> Blueprint:
    """gpt-oss: every other layer has a window, the first one included; biases and sinks."""
    layer_windows = windows(config, lambda layer: layer % 2 == 0)
    bias = config.flag("attention_bias")

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index],
            qkv_bias=bias,
            output_bias=bias,
        )
        blueprint.vector(config.size("num_attention_heads"))  # sinks
        experts = local_experts(config)
        mixture(blueprint, f"layers.{index}.mlp", experts, router="router", bias=True)

    return decoder(config, layer)


def llama4(config: Config) -> Blueprint:
    """Llama 4: three chunked layers to a full one; mixtures have a shared expert."""
    layer_count = config.layers()
    interval = config.size("no_rope_layer_interval")
    with_rope = config.indices("no_rope_layers") or [
        int((layer + 1) % interval != 0) for layer in range(layer_count)
    ]
    if len(with_rope) != layer_count:
        raise config.error(f"no_rope_layers: {len(with_rope)} entries for {layer_count} layers")
    chunks = windows(
        config,
        lambda layer: bool(with_rope[layer]),
        key="attention_chunk_size",
        label="chunked_attention",
    )
    step = config.size("interleave_moe_layer_step")
    mixed = config.indices("moe_layers")
    if mixed is None:
        mixed = list(range(step - 1, layer_count, step))
    bias = config.flag("attention_bias")

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=chunks[index],
            qkv_bias=bias,
            output_bias=bias,
        )
        if index in mixed:
            name, size = f"layers.{index}.feed_forward", config.size("intermediate_size")
            mixture(blueprint, name, local_experts(config, size), router="router")
            gated_ffn(blueprint, f"{name}.shared_expert", size)
        else:
            dense_ffn(blueprint, index, config.size("intermediate_size_mlp"))

    return decoder(config, layer)


def qwen2_moe(config: Config) -> Blueprint:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the mixture."""
    layer_windows = qwen_windows(config)
    ffn = qwen_ffn(config, shared=True)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index],
            qkv_bias=config.flag("qkv_bias"),
        )
        ffn(blueprint, index)

    return decoder(config, layer)


def qwen3_moe(config: Config) -> Blueprint:
    """Qwen3-MoE: norms on queries and keys, no shared expert."""
    layer_windows = windows(config, lambda layer: config.flag("use_sliding_window"))
    bias = config.flag("attention_bias")
    ffn = qwen_ffn(config, shared=False)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            num_kv_heads=kv_heads(config),
            head_size=head_size(config),
            window_tokens=layer_windows[index],
            qkv_bias=bias,
            output_bias=bias,
            qk_norm=True,
        )
        ffn(blueprint, index)

    return decoder(config, layer)


def qwen_ffn(config: Config, *, shared: bool) -> Callable[[Blueprint, int], None]:
    """Qwen's FFN: a mixture on every ``decoder_sparse_step``-th layer, dense on the others."""
    shared_size = config.size("shared_expert_intermediate_size") if shared else 0
    count = config.size("num_experts", "num_local_experts", least=0)
    step = config.size("decoder_sparse_step")
    dense_layers = set(config.indices("mlp_only_layers") or [])

    def ffn(blueprint: Blueprint, index: int) -> None:
        if index in dense_layers or count == 0 or (index + 1) % step:
            dense_ffn(blueprint, index, config.size("intermediate_size"))
            return
        name = f"layers.{index}.mlp"
        experts = Experts(
            num_layers=1,
            num_experts=count,
            experts_per_token=config.size("num_experts_per_tok"),
            ffn_size=config.size("moe_intermediate_size"),
            shared_ffn_size=shared_size,
        )
        mixture(blueprint, name, experts)
        if shared:
            gated_ffn(blueprint, f"{name}.shared_expert", shared_size)
            hidden = blueprint.hidden_size
            blueprint.matrix("other_matrices", f"{name}.shared_expert_gate", 1, hidden)

    return ffn


def gemma4(config: Config) -> Blueprint:
    """Gemma 4: windowed and full layers with KV shapes of their own.

    Full layers may share one projection for keys and values (both are cached). The last
    ``num_kv_shared_layers`` read the cache of earlier layers. A mixture stands beside the dense
    FFN where there is one. Small models add an embedding of each token to every layer.
    """
    if config.text("use_bidirectional_attention") == "all":
        raise config.error("use_bidirectional_attention = 'all': an encoder keeps no KV cache")
    layer_count = config.layers()
    full = layer_types(config, {"full_attention": True, "sliding_attention": False}) or [
        (layer + 1) % 6 == 0 for layer in range(layer_count)
    ]
    full[-1] = True
    first_shared = layer_count - config.size("num_kv_shared_layers", least=0)
    if not 0 < first_shared <= layer_count:
        raise config.error("num_kv_shared_layers: must leave a layer with a cache of its own")
    per_layer = config.optional_size("hidden_size_per_layer_input", least=0) or 0

    def layer(blueprint: Blueprint, index: int) -> None:
        _gemma4_attention(blueprint, index, full=full[index], owns_cache=index < first_shared)
        hidden, size = blueprint.hidden_size, config.size("intermediate_size")
        wide = config.flag("use_double_wide_mlp") and index >= first_shared
        dense_ffn(blueprint, index, 2 * size if wide else size)
        if config.flag("enable_moe_block"):
            experts = Experts(
                num_layers=1,
                num_experts=config.size("num_experts"),
                experts_per_token=config.size("top_k_experts"),
                ffn_size=config.size("moe_intermediate_size"),
            )
            mixture(blueprint, f"layers.{index}", experts, router="router.proj")
            blueprint.vector(experts.num_experts + hidden + 3 * hidden)  # scales, norms
        if per_layer:
            name = f"layers.{index}.per_layer_"
            blueprint.matrix("ffn", name + "input_gate", per_layer, hidden)
            blueprint.matrix("ffn", name + "projection", hidden, per_layer)
            blueprint.vector(hidden)

    blueprint = decoder(config, layer, norms=4)
    if per_layer:
        width = layer_count * per_layer
        rows = config.size("vocab_size_per_layer_input")
        blueprint.vector(rows * width, part="lookups")
        name = "per_layer_model_projection"
        blueprint.matrix("other_matrices", name, width, blueprint.hidden_size)
        blueprint.vector(per_layer)
    return blueprint


def _gemma4_attention(blueprint: Blueprint, index: int, *, full: bool, owns_cache: bool) -> None:
    config, hidden = blueprint.config, blueprint.hidden_size
    heads, bias = config.size("num_attention_heads"), config.flag("attention_bias")
    one_projection = full and config.flag("attention_k_eq_v")
    size = config.size("global_head_dim" if full else "head_dim")
    shared = kv_heads(config)
    if one_projection and "num_global_key_value_heads" in config:
        shared = kv_heads(config, "num_global_key_value_heads")
    name = f"layers.{index}.self_attn."
    blueprint.matrix("attention", name + "q_proj", heads * size, hidden, bias=bias)
    if owns_cache:
        blueprint.matrix("attention", name + "k_proj", shared * size, hidden, bias=bias)
        if not one_projection:
            blueprint.matrix("attention", name + "v_proj", shared * size, hidden, bias=bias)
    blueprint.matrix("attention", name + "o_proj", hidden, heads * size, bias=bias)
    blueprint.vector((2 if owns_cache else 1) * size)
    blueprint.attends(
        AttentionGroup(
            num_layers=1,
            num_query_heads=heads,
            num_kv_heads=shared,
            head_size=size,
            window_tokens=None if full else config.size("sliding_window"),
            owns_cache=owns_cache,
        )
    )
