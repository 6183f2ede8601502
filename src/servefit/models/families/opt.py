"""OPT."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import attention, embeddings, head_size, plain_ffn

#: OPT keeps two rows of its position table for padding.
POSITION_OFFSET = 2


def opt(config: Config) -> Blueprint:
    """OPT: learned positions, plain FFN, biases everywhere; 350M projects its embeddings.

    With ``do_layer_norm_before`` false (350M) there is no final norm.
    """
    blueprint = Blueprint(config)
    hidden = blueprint.hidden_size
    heads = config.size("num_attention_heads")
    bias = config.flag("enable_bias", True)
    norm = 2 * hidden if config.flag("layer_norm_elementwise_affine", True) else 0
    blueprint.ffn_size = config.size("ffn_dim", 3072)
    blueprint.num_ffn_matrices = 2
    for layer in range(blueprint.num_layers):
        attention(
            blueprint,
            layer,
            num_heads=heads,
            num_kv_heads=heads,
            head_size=head_size(config, heads),
            qkv_bias=bias,
            output_bias=bias,
        )
        name = f"layers.{layer}."
        plain_ffn(blueprint, name + "fc1", name + "fc2", blueprint.ffn_size, bias=bias)
        blueprint.vector(2 * norm)
    final_norm = config.flag("do_layer_norm_before", True) and not config.flag(
        "_remove_final_layer_norm", False
    )
    blueprint.vector(norm if final_norm else 0)
    width = config.size("word_embed_proj_dim", hidden)
    if width != hidden:
        blueprint.matrix("other_matrices", "project_in", hidden, width)
        blueprint.matrix("other_matrices", "project_out", width, hidden)
    positions = config.size("max_position_embeddings", 2048) + POSITION_OFFSET
    blueprint.vector(positions * hidden, part="lookups")
    embeddings(blueprint, tied=config.flag("tie_word_embeddings", True), width=width)
    return blueprint
