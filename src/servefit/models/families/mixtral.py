"""Mixtures of experts with grouped-query attention."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import (
    attention,
    embeddings,
    head_size,
    kv_heads,
    routed_experts,
)
from servefit.models.shape import Experts


def mixtral(config: Config) -> Blueprint:
    """Mixtral: every FFN is a mixture, 2 of 8 experts by default."""
    blueprint = Blueprint(config)
    heads = config.size("num_attention_heads")
    experts = Experts(
        num_layers=blueprint.num_layers,
        num_experts=config.size("num_local_experts", 8),
        experts_per_token=config.size("num_experts_per_tok", 2),
        ffn_size=config.size("intermediate_size"),
    )
    blueprint.experts = experts
    for layer in range(blueprint.num_layers):
        attention(
            blueprint,
            layer,
            num_heads=heads,
            num_kv_heads=kv_heads(config, heads, 8),
            head_size=head_size(config, heads),
            window_tokens=config.optional_size("sliding_window"),
        )
        routed_experts(
            blueprint,
            f"layers.{layer}.block_sparse_moe",
            count=experts.num_experts,
            size=experts.ffn_size,
            matrices=("w1", "w3", "w2"),
            router="gate",
        )
        blueprint.vector(2 * blueprint.hidden_size)
    blueprint.vector(blueprint.hidden_size)
    embeddings(blueprint, tied=config.flag("tie_word_embeddings", False))
    return blueprint
