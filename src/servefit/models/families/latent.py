"""Multi-head latent attention (MLA): DeepSeek-V2, V3, R1 and Kimi K2."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import decoder, dense_ffn, gated_ffn, mixture
from servefit.models.parts import AttentionGroup, Experts


def deepseek_v2(config: Config) -> Blueprint:
    """DeepSeek-V2 and V2-Lite (which does not compress its queries)."""
    return _deepseek(config, router_bias=False)


def deepseek_v3(config: Config) -> Blueprint:
    """DeepSeek-V3, R1 and Kimi K2: a bias on the router's scores."""
    return _deepseek(config, router_bias=True)


def _deepseek(config: Config, *, router_bias: bool) -> Blueprint:
    config.refuse("index_topk", "the cache of the sparse-attention indexer is not known")
    count = config.optional_size("n_routed_experts", least=0) or 0
    first, step = config.size("first_k_dense_replace", least=0), config.size("moe_layer_freq")
    size = config.size("moe_intermediate_size") if count else 0
    shared = size * (config.optional_size("n_shared_experts", least=0) or 0)

    def layer(blueprint: Blueprint, index: int) -> None:
        _latent_attention(blueprint, index)
        if not count or index < first or index % step:
            dense_ffn(blueprint, index, config.size("intermediate_size"))
            return
        name = f"layers.{index}.mlp"
        experts = Experts(1, count, config.size("num_experts_per_tok"), size, shared)
        mixture(blueprint, name, experts)
        blueprint.vector(count if router_bias else 0)
        if shared:
            gated_ffn(blueprint, f"{name}.shared_experts", shared)

    blueprint = decoder(config, layer)
    if config.optional_size("num_nextn_predict_layers", least=0):
        blueprint.notes.append("its multi-token-prediction layer is not counted")
    return blueprint


def _latent_attention(blueprint: Blueprint, index: int) -> None:
    """MLA: the cache holds one latent (c_kv and the rotary key k_rope) for all heads."""
    config, hidden = blueprint.config, blueprint.hidden_size
    heads, bias = config.size("num_attention_heads"), config.flag("attention_bias")
    latent, rope = config.size("kv_lora_rank"), config.size("qk_rope_head_dim")
    plain, value = config.size("qk_nope_head_dim"), config.size("v_head_dim")
    queries, rank = heads * (plain + rope), config.optional_size("q_lora_rank")
    name = f"layers.{index}.self_attn."
    if rank is None:
        blueprint.matrix("attention", name + "q_proj", queries, hidden)
    else:
        blueprint.matrix("attention", name + "q_a_proj", rank, hidden, bias=bias)
        blueprint.vector(rank)
        blueprint.matrix("attention", name + "q_b_proj", queries, rank)
    blueprint.matrix("attention", name + "kv_a_proj_with_mqa", latent + rope, hidden, bias=bias)
    blueprint.vector(latent)
    blueprint.matrix("attention", name + "kv_b_proj", heads * (plain + value), latent)
    blueprint.matrix("attention", name + "o_proj", hidden, heads * value, bias=bias)
    blueprint.attends(
        AttentionGroup(
            num_layers=1,
            num_query_heads=heads,
            num_kv_heads=1,
            head_size=plain + rope,
            value_head_size=value,
            latent_size=latent + rope,
            latent_value_size=latent,
        )
    )
