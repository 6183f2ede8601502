"""Dense Transformers with a plain FFN of two matrices: OPT, Falcon, Phi-1 and Phi-2."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import (
    attention,
    decoder,
    embeddings,
    head_size,
    kv_heads,
    plain_ffn,
)

#: OPT keeps two rows of its position table for padding.
OPT_POSITION_OFFSET = 2


def opt(config: Config) -> Blueprint:
    """OPT: learned positions, biases everywhere; 350M projects its embeddings.

    With ``do_layer_norm_before`` false (350M) there is no final norm.
    """
    blueprint = Blueprint(config)
    hidden, bias = blueprint.hidden_size, config.flag("enable_bias")
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine") else 0
    for layer in range(blueprint.num_layers):
        attention(blueprint, layer, num_kv_heads=config.size("num_attention_heads"), bias=bias)
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
    blueprint.learned_positions = True
    embeddings(blueprint, width=width)
    return blueprint


def falcon(config: Config) -> Blueprint:
    """Falcon: one KV head with ``multi_query``; the new decoder has ``num_kv_heads`` of them."""
    bias, size = config.flag("bias"), config.optional_size("ffn_hidden_size")
    if config.flag("new_decoder_architecture"):
        shared = kv_heads(config, "num_kv_heads")
        norms = config.optional_size("num_ln_in_parallel_attn") or 2
    else:
        shared = 1 if config.flag("multi_query") else config.size("num_attention_heads")
        norms = 1 if config.flag("parallel_attn") else 2

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, block="self_attention", num_kv_heads=shared, bias=bias)
        name, width = f"layers.{index}.mlp.dense_", size or 4 * blueprint.hidden_size
        plain_ffn(blueprint, name + "h_to_4h", name + "4h_to_h", width, bias=bias)

    return decoder(config, layer, norms=norms, norm_bias=True)


def phi(config: Config) -> Blueprint:
    """Phi-1, 1.5 and 2: attention beside the FFN, biases everywhere, LM head included."""
    qk_norm = 4 * head_size(config) if config.flag("qk_layernorm") else 0

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, bias=True)
        blueprint.vector(qk_norm)
        name, size = f"layers.{index}.mlp.", config.size("intermediate_size")
        plain_ffn(blueprint, name + "fc1", name + "fc2", size, bias=True)

    return decoder(config, layer, norms=1, norm_bias=True, head_bias=True)
