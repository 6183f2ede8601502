"""Gemma 4."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import decoder, dense_ffn, kv_heads, layer_types, mixture
from servefit.models.parts import AttentionGroup, Experts

#: One layer in so many has full attention where the config lists no layer types.
FULL_ATTENTION_INTERVAL = 6


def gemma4(config: Config) -> Blueprint:
    """Windowed and full layers with KV shapes of their own.

    Full layers may share one projection for keys and values (both are cached). The last
    ``num_kv_shared_layers`` read the cache of earlier layers. A mixture stands beside the dense
    FFN where there is one. Small models add an embedding of each token to every layer.
    """
    if config.values.get("use_bidirectional_attention") == "all":
        raise config.error("use_bidirectional_attention = 'all': an encoder keeps no KV cache")
    layers = config.layers()
    full = layer_types(config, {"full_attention": True, "sliding_attention": False}) or [
        (layer + 1) % FULL_ATTENTION_INTERVAL == 0 for layer in range(layers)
    ]
    full[-1] = True
    first_shared = layers - config.size("num_kv_shared_layers", least=0)
    if first_shared < 1:
        raise config.error("num_kv_shared_layers: must leave a layer with a cache of its own")
    extra = config.optional_size("hidden_size_per_layer_input", least=0) or 0

    def layer(blueprint: Blueprint, index: int) -> None:
        hidden, size = blueprint.hidden_size, config.size("intermediate_size")
        _attention(blueprint, index, full=full[index], owns_cache=index < first_shared)
        wide = config.flag("use_double_wide_mlp") and index >= first_shared
        dense_ffn(blueprint, index, 2 * size if wide else size)
        if config.flag("enable_moe_block"):
            _mixture(blueprint, index)
        if extra:
            name = f"layers.{index}.per_layer_"
            blueprint.matrix("ffn", name + "input_gate", extra, hidden)
            blueprint.matrix("ffn", name + "projection", hidden, extra)
            blueprint.vector(hidden)

    blueprint = decoder(config, layer, norms=4)
    if extra:
        rows, width = config.size("vocab_size_per_layer_input"), layers * extra
        blueprint.vector(rows * width, part="lookups")
        projection = "per_layer_model_projection"
        blueprint.matrix("other_matrices", projection, width, blueprint.hidden_size)
        blueprint.vector(extra)
    return blueprint


def _mixture(blueprint: Blueprint, index: int) -> None:
    config = blueprint.config
    experts = Experts(
        num_layers=1,
        num_experts=config.size("num_experts"),
        experts_per_token=config.size("top_k_experts"),
        ffn_size=config.size("moe_intermediate_size"),
    )
    mixture(blueprint, f"layers.{index}", experts, router="router.proj")
    norms_and_scales = 4 * blueprint.hidden_size + experts.num_experts
    blueprint.vector(norms_and_scales)


def _attention(blueprint: Blueprint, index: int, *, full: bool, owns_cache: bool) -> None:
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
