"""Hybrids, where only some layers keep keys and values and others a recurrent state."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import MOST_LAYERS, Config
from servefit.models.families.blocks import (
    attention,
    decoder,
    dense_ffn,
    embeddings,
    gated_ffn,
    layer_types,
    mixture,
    plain_ffn,
)
from servefit.models.families.mixtures import local_experts, qwen_ffn
from servefit.models.families.recurrent import (
    gated_delta_net,
    mamba2_block,
    mamba_block,
    time_step_rank,
)
from servefit.models.parts import Experts

#: Whether a layer has attention, by the names that configs give it.
LAYER_TYPES = {
    "full_attention": True,
    "attention": True,
    "linear_attention": False,
    "mamba": False,
}


def jamba(config: Config) -> Blueprint:
    """Jamba: attention in one layer of eight, a mixture in every other one, by default."""
    size = config.size("mamba_expand") * config.size("hidden_size")
    states, rank = config.size("mamba_d_state"), time_step_rank(config, "mamba_dt_rank")
    experts = Experts(
        num_layers=1,
        num_experts=config.size("num_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        ffn_size=config.size("intermediate_size"),
    )

    def layer(blueprint: Blueprint, index: int) -> None:
        if _is_turn(config, "attn_layer", index):
            attention(blueprint, index)
        else:
            mamba_block(
                blueprint,
                f"layers.{index}.mamba",
                size=size,
                state_size=states,
                kernel=config.size("mamba_d_conv"),
                rank=rank,
                bias=config.flag("mamba_proj_bias"),
                conv_bias=config.flag("mamba_conv_bias"),
            )
            blueprint.vector(rank + 2 * states)  # norms of the time step, B and C
        if experts.num_experts > 1 and _is_turn(config, "expert_layer", index):
            mixture(blueprint, f"layers.{index}.feed_forward", experts, router="router")
        else:
            dense_ffn(blueprint, index, experts.ffn_size)

    return decoder(config, layer)


def bamba(config: Config) -> Blueprint:
    """Bamba: Mamba-2 layers, attention in those of ``attn_layer_indices``."""
    attending = set(config.indices("attn_layer_indices") or [])

    def layer(blueprint: Blueprint, index: int) -> None:
        if index in attending:
            attention(blueprint, index, bias=config.flag("attention_bias"))
        else:
            _mamba2(blueprint, index)
        size, bias = config.size("intermediate_size"), config.flag("mlp_bias")
        dense_ffn(blueprint, index, size, bias=bias)

    return decoder(config, layer)


def granite_hybrid(config: Config) -> Blueprint:
    """Granite 4: Mamba-2 or attention, then a mixture (if any) beside a shared expert."""
    attending = layer_types(config, LAYER_TYPES) or [False] * config.layers()
    shared = config.size("shared_intermediate_size")
    mixed = config.size("num_local_experts", least=0) > 0

    def layer(blueprint: Blueprint, index: int) -> None:
        if attending[index]:
            attention(blueprint, index, bias=config.flag("attention_bias"))
        else:
            _mamba2(blueprint, index)
        name = f"layers.{index}."
        if mixed:
            mixture(blueprint, name + "block_sparse_moe", local_experts(config, shared))
        else:
            blueprint.dense(shared)
        gated_ffn(blueprint, name + "shared_mlp", shared)

    return decoder(config, layer)


def falcon_h1(config: Config) -> Blueprint:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, bias=config.flag("attention_bias"))
        _mamba2(
            blueprint,
            index,
            width=config.optional_size("mamba_d_ssm"),
            output_bias=config.flag("projectors_bias"),
            norm=config.flag("mamba_rms_norm"),
        )
        size, bias = config.size("intermediate_size"), config.flag("mlp_bias")
        dense_ffn(blueprint, index, size, bias=bias)

    return decoder(config, layer)


def qwen3_next(config: Config) -> Blueprint:
    """Qwen3-Next: gated delta net in three layers of four, mixtures with a shared expert."""
    return _qwen_hybrid(config, mixed=True)


def qwen3_5(config: Config) -> Blueprint:
    """Qwen3.5: the same with dense FFNs."""
    return _qwen_hybrid(config, mixed=False)


def _qwen_hybrid(config: Config, *, mixed: bool) -> Blueprint:
    interval = config.size("full_attention_interval")
    attending = layer_types(config, LAYER_TYPES) or [
        (layer + 1) % interval == 0 for layer in range(config.layers())
    ]
    mixing = qwen_ffn(config, shared=True) if mixed else None

    def layer(blueprint: Blueprint, index: int) -> None:
        if attending[index]:
            bias = config.flag("attention_bias")
            attention(blueprint, index, bias=bias, qk_norm=True, gated=True)
        else:
            gated_delta_net(blueprint, index)
        if mixing:
            mixing(blueprint, index)
        else:
            dense_ffn(blueprint, index, config.size("intermediate_size"))

    blueprint = decoder(config, layer)
    if config.optional_size("mtp_num_hidden_layers", least=0):
        blueprint.notes.append("its multi-token-prediction layer is not counted")
    return blueprint


def nemotron_h(config: Config) -> Blueprint:
    """Nemotron-H and Nemotron 3: each layer is one block: Mamba-2, attention, FFN or mixture."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    kinds = config.strings("layers_block_type", "layer_types")
    if kinds is None:
        kinds = [letters.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    if not 0 < len(kinds) <= MOST_LAYERS:
        raise config.error(f"hybrid_override_pattern: must name 1 to {MOST_LAYERS} layers")
    build = {
        "mamba": _nemotron_mamba,
        "linear_attention": _nemotron_mamba,
        "attention": _nemotron_attention,
        "full_attention": _nemotron_attention,
        "mlp": _nemotron_ffn,
        "moe": _nemotron_mixture,
    }
    blueprint = Blueprint(config, num_layers=len(kinds))
    blueprint.num_ffn_matrices = 2
    for index, kind in enumerate(kinds):
        if kind not in build:
            known = ", ".join((*letters, *build))
            raise config.error(f"layer type {kind[:20]!r} is not known; known are {known}")
        build[kind](blueprint, index)
        blueprint.vector(blueprint.hidden_size)
    blueprint.vector(blueprint.hidden_size)
    embeddings(blueprint)
    if config.optional_size("num_nextn_predict_layers", least=0):
        blueprint.notes.append("its multi-token-prediction layers are not counted")
    return blueprint


def _nemotron_mamba(blueprint: Blueprint, index: int) -> None:
    config = blueprint.config
    mamba2_block(
        blueprint,
        f"layers.{index}.mixer",
        heads=config.size("mamba_num_heads"),
        head=config.size("mamba_head_dim"),
        groups=config.size("n_groups", "mamba_n_groups"),
        state_size=config.size("ssm_state_size"),
        kernel=config.size("conv_kernel", "mamba_d_conv"),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias"),
    )


def _nemotron_attention(blueprint: Blueprint, index: int) -> None:
    config = blueprint.config
    config.refuse("sliding_window", "which layers it narrows is not known")
    width = config.size("head_dim", "attention_head_dim")
    attention(blueprint, index, block="mixer", width=width)


def _nemotron_ffn(blueprint: Blueprint, index: int) -> None:
    config, name = blueprint.config, f"layers.{index}.mixer."
    size, bias = config.size("intermediate_size"), config.flag("mlp_bias")
    plain_ffn(blueprint, name + "up_proj", name + "down_proj", size, bias=bias)


def _nemotron_mixture(blueprint: Blueprint, index: int) -> None:
    """Plain experts, in larger models on a narrower latent; a plain shared expert."""
    config, hidden = blueprint.config, blueprint.hidden_size
    latent = config.optional_size("moe_latent_size")
    width, bias = latent or hidden, config.flag("mlp_bias")
    experts = Experts(
        num_layers=1,
        num_experts=config.size("n_routed_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        ffn_size=config.size("moe_intermediate_size"),
        shared_ffn_size=config.size("moe_shared_expert_intermediate_size"),
    )
    blueprint.mixes(experts)
    count, size, shared = experts.num_experts, experts.ffn_size, experts.shared_ffn_size
    name = f"layers.{index}.mixer."
    blueprint.matrix("experts", name + "experts.0.up_proj", size, width, copies=count)
    blueprint.matrix("experts", name + "experts.0.down_proj", width, size, copies=count)
    blueprint.matrix("ffn", name + "shared_experts.up_proj", shared, hidden, bias=bias)
    blueprint.matrix("ffn", name + "shared_experts.down_proj", hidden, shared, bias=bias)
    if latent:
        blueprint.matrix("ffn", name + "fc1_latent_proj", latent, hidden, bias=bias)
        blueprint.matrix("ffn", name + "fc2_latent_proj", hidden, latent, bias=bias)
    blueprint.matrix("other_matrices", name + "gate", count, hidden)
    blueprint.vector(count)


def _mamba2(
    blueprint: Blueprint,
    index: int,
    *,
    width: int | None = None,
    output_bias: bool | None = None,
    norm: bool = True,
) -> None:
    """The Mamba-2 block of Bamba, Granite 4 and Falcon-H1, ``width`` or expand x hidden wide."""
    config, heads = blueprint.config, blueprint.config.size("mamba_n_heads")
    width = width or config.size("mamba_expand") * blueprint.hidden_size
    if width % heads:
        raise config.error(f"mamba_n_heads {heads} does not divide the width {width}")
    if config.values.get("mamba_d_head") not in (None, "auto", width // heads):
        raise config.error(f"mamba_d_head x mamba_n_heads {heads} is not the width {width}")
    mamba2_block(
        blueprint,
        f"layers.{index}.mamba",
        heads=heads,
        head=width // heads,
        groups=config.size("mamba_n_groups"),
        state_size=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
        bias=config.flag("mamba_proj_bias"),
        conv_bias=config.flag("mamba_conv_bias"),
        output_bias=output_bias,
        norm=norm,
    )


def _is_turn(config: Config, key: str, index: int) -> bool:
    """Whether a layer is one of those at ``offset`` in every ``period``."""
    period, offset = config.size(f"{key}_period"), config.size(f"{key}_offset", least=0)
    return index % period == offset
