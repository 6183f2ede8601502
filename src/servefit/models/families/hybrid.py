"""Recurrent models and hybrids, where only some layers keep keys and values."""

from __future__ import annotations

from servefit.dtypes import canonical_dtype
from servefit.models.blueprint import Blueprint
from servefit.models.config import MOST_LAYERS, Config
from servefit.models.families.blocks import (
    attention,
    decoder,
    dense_ffn,
    embeddings,
    gated_ffn,
    head_size,
    kv_heads,
    layer_types,
    mixture,
    plain_ffn,
)
from servefit.models.families.mixtures import local_experts, qwen_ffn
from servefit.models.shape import Experts, RecurrentGroup

#: Layers with attention, by the names that configs give them.
ATTENTION_LAYERS = {
    "full_attention": True,
    "attention": True,
    "linear_attention": False,
    "mamba": False,
}


def mamba(config: Config) -> Blueprint:
    """Mamba and Falcon-Mamba: the same recurrent block in every layer."""
    width = config.optional_size("intermediate_size")
    size = width or config.size("expand") * config.size("hidden_size")

    def layer(blueprint: Blueprint, index: int) -> None:
        _mamba_block(
            blueprint,
            f"layers.{index}.mixer",
            size=size,
            state_size=config.size("state_size"),
            kernel=config.size("conv_kernel"),
            rank=_time_step_rank(config, "time_step_rank"),
            bias=config.flag("use_bias"),
            conv_bias=config.flag("use_conv_bias"),
        )

    return decoder(config, layer, norms=1)


def mamba2(config: Config) -> Blueprint:
    """Mamba-2."""

    def layer(blueprint: Blueprint, index: int) -> None:
        _mamba2_block(
            blueprint,
            f"layers.{index}.mixer",
            heads=config.size("num_heads"),
            head=config.size("head_dim"),
            groups=config.size("n_groups"),
            state_size=config.size("state_size"),
            kernel=config.size("conv_kernel"),
            bias=config.flag("use_bias"),
            conv_bias=config.flag("use_conv_bias"),
        )

    return decoder(config, layer, norms=1)


def jamba(config: Config) -> Blueprint:
    """Jamba: attention in one layer of eight, a mixture in every other one, by default."""
    size = config.size("mamba_expand") * config.size("hidden_size")
    states, rank = config.size("mamba_d_state"), _time_step_rank(config, "mamba_dt_rank")
    experts = Experts(
        num_layers=1,
        num_experts=config.size("num_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        ffn_size=config.size("intermediate_size"),
    )

    def layer(blueprint: Blueprint, index: int) -> None:
        if _is_turn(config, "attn_layer", index):
            attention(blueprint, index, num_kv_heads=kv_heads(config), head_size=head_size(config))
        else:
            _mamba_block(
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
    bias = config.flag("attention_bias")

    def layer(blueprint: Blueprint, index: int) -> None:
        if index in attending:
            attention(
                blueprint,
                index,
                num_kv_heads=kv_heads(config),
                head_size=head_size(config),
                qkv_bias=bias,
                output_bias=bias,
            )
        else:
            _mamba2_of_hybrid(blueprint, index)
        size, mlp_bias = config.size("intermediate_size"), config.flag("mlp_bias")
        dense_ffn(blueprint, index, size, bias=mlp_bias)

    return decoder(config, layer)


def granite_hybrid(config: Config) -> Blueprint:
    """Granite 4: Mamba-2 or attention, then a mixture (if any) beside a shared expert."""
    attending = layer_types(config, ATTENTION_LAYERS) or [False] * config.layers()
    bias = config.flag("attention_bias")
    shared = config.size("shared_intermediate_size")
    mixed = config.size("num_local_experts", least=0) > 0

    def layer(blueprint: Blueprint, index: int) -> None:
        if attending[index]:
            attention(
                blueprint,
                index,
                num_kv_heads=kv_heads(config),
                head_size=head_size(config),
                qkv_bias=bias,
                output_bias=bias,
            )
        else:
            _mamba2_of_hybrid(blueprint, index)
        name = f"layers.{index}."
        if mixed:
            mixture(blueprint, name + "block_sparse_moe", local_experts(config, shared))
        else:
            blueprint.dense(shared)
        gated_ffn(blueprint, name + "shared_mlp", shared)

    return decoder(config, layer)


def falcon_h1(config: Config) -> Blueprint:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
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
        _mamba2_block(
            blueprint,
            f"layers.{index}.mamba",
            heads=config.size("mamba_n_heads"),
            head=_mamba_head(config, _falcon_h1_width(config)),
            groups=config.size("mamba_n_groups"),
            state_size=config.size("mamba_d_state"),
            kernel=config.size("mamba_d_conv"),
            bias=config.flag("mamba_proj_bias"),
            output_bias=config.flag("projectors_bias"),
            conv_bias=config.flag("mamba_conv_bias"),
            norm=config.flag("mamba_rms_norm"),
        )
        size, mlp_bias = config.size("intermediate_size"), config.flag("mlp_bias")
        dense_ffn(blueprint, index, size, bias=mlp_bias)

    return decoder(config, layer)


def _falcon_h1_width(config: Config) -> int:
    return config.optional_size("mamba_d_ssm") or (
        config.size("mamba_expand") * config.size("hidden_size")
    )


def nemotron_h(config: Config) -> Blueprint:
    """Nemotron-H and Nemotron 3: each layer is one block: Mamba-2, attention, FFN or mixture."""
    letters = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    kinds = config.strings("layers_block_type", "layer_types")
    if kinds is None:
        pattern = config.text("hybrid_override_pattern")
        kinds = [letters.get(letter, letter) for letter in pattern]
    if not 0 < len(kinds) <= MOST_LAYERS:
        raise config.error("hybrid_override_pattern is missing: it says what each layer is")
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
            raise config.error(f"layer type {kind[:20]!r} is not known; known are {'M, *, -, E'}")
        build[kind](blueprint, index)
        blueprint.vector(blueprint.hidden_size)
    blueprint.vector(blueprint.hidden_size)
    embeddings(blueprint)
    if config.optional_size("num_nextn_predict_layers", least=0):
        blueprint.notes.append("its multi-token-prediction layers are not counted")
    return blueprint


def _nemotron_mamba(blueprint: Blueprint, index: int) -> None:
    config = blueprint.config
    _mamba2_block(
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
    size = config.size("head_dim", "attention_head_dim")
    attention(blueprint, index, block="mixer", num_kv_heads=kv_heads(config), head_size=size)


def _nemotron_ffn(blueprint: Blueprint, index: int) -> None:
    config, name = blueprint.config, f"layers.{index}.mixer."
    size, bias = config.size("intermediate_size"), config.flag("mlp_bias")
    plain_ffn(blueprint, name + "up_proj", name + "down_proj", size, bias=bias)


def _nemotron_mixture(blueprint: Blueprint, index: int) -> None:
    """Plain experts, in Nemotron 3 Super on a narrower latent; a plain shared expert."""
    config, hidden = blueprint.config, blueprint.hidden_size
    latent = config.optional_size("moe_latent_size")
    width, bias = latent or hidden, config.flag("mlp_bias")
    shared = config.size("moe_shared_expert_intermediate_size")
    experts = Experts(
        num_layers=1,
        num_experts=config.size("n_routed_experts"),
        experts_per_token=config.size("num_experts_per_tok"),
        ffn_size=config.size("moe_intermediate_size"),
        shared_ffn_size=shared,
    )
    blueprint.mixes(experts)
    name, count, size = f"layers.{index}.mixer.", experts.num_experts, experts.ffn_size
    blueprint.matrix("experts", name + "experts.0.up_proj", size, width, copies=count)
    blueprint.matrix("experts", name + "experts.0.down_proj", width, size, copies=count)
    blueprint.matrix("ffn", name + "shared_experts.up_proj", shared, hidden, bias=bias)
    blueprint.matrix("ffn", name + "shared_experts.down_proj", hidden, shared, bias=bias)
    if latent:
        blueprint.matrix("ffn", name + "fc1_latent_proj", latent, hidden, bias=bias)
        blueprint.matrix("ffn", name + "fc2_latent_proj", hidden, latent, bias=bias)
    blueprint.matrix("other_matrices", name + "gate", count, hidden)
    blueprint.vector(count)


def qwen3_next(config: Config) -> Blueprint:
    """Qwen3-Next: gated delta net in three layers of four, mixtures with a shared expert."""
    return _qwen_hybrid(config, mixed=True)


def qwen3_5(config: Config) -> Blueprint:
    """Qwen3.5: the same with dense FFNs."""
    return _qwen_hybrid(config, mixed=False)


def _qwen_hybrid(config: Config, *, mixed: bool) -> Blueprint:
    interval = config.size("full_attention_interval")
    attending = layer_types(config, ATTENTION_LAYERS) or [
        (layer + 1) % interval == 0 for layer in range(config.layers())
    ]
    bias = config.flag("attention_bias")
    mixing = qwen_ffn(config, shared=True) if mixed else None

    def layer(blueprint: Blueprint, index: int) -> None:
        if attending[index]:
            attention(
                blueprint,
                index,
                num_kv_heads=kv_heads(config),
                head_size=head_size(config),
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=True,
                gated=True,
            )
        else:
            _gated_delta_net(blueprint, index)
        if mixing:
            mixing(blueprint, index)
        else:
            dense_ffn(blueprint, index, config.size("intermediate_size"))

    blueprint = decoder(config, layer)
    if config.optional_size("mtp_num_hidden_layers", least=0):
        blueprint.notes.append("its multi-token-prediction layer is not counted")
    return blueprint


def _gated_delta_net(blueprint: Blueprint, index: int) -> None:
    """Linear attention with a state of d_k x d_v for each value head."""
    config, hidden = blueprint.config, blueprint.hidden_size
    key_heads, heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key, value = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    kernel = config.size("linear_conv_kernel_dim")
    mixed, values = 2 * key_heads * key + heads * value, heads * value
    name = f"layers.{index}.linear_attn."
    blueprint.matrix("recurrent", name + "in_proj_qkv", mixed, hidden)
    blueprint.matrix("recurrent", name + "in_proj_z", values, hidden)
    blueprint.matrix("recurrent", name + "in_proj_b", heads, hidden)
    blueprint.matrix("recurrent", name + "in_proj_a", heads, hidden)
    blueprint.matrix("recurrent", name + "out_proj", hidden, values)
    blueprint.vector(mixed * kernel + 2 * heads + value)  # convolution, time step and decay, norm
    _recurs(blueprint, "gated delta net", mixed * (kernel - 1), heads * key * value)


def _mamba2_of_hybrid(blueprint: Blueprint, index: int) -> None:
    """The Mamba-2 block of Bamba and Granite 4."""
    config = blueprint.config
    width = config.size("mamba_expand") * config.size("hidden_size")
    bias = config.flag("mamba_proj_bias")
    _mamba2_block(
        blueprint,
        f"layers.{index}.mamba",
        heads=config.size("mamba_n_heads"),
        head=_mamba_head(config, width),
        groups=config.size("mamba_n_groups"),
        state_size=config.size("mamba_d_state"),
        kernel=config.size("mamba_d_conv"),
        bias=bias,
        conv_bias=config.flag("mamba_conv_bias"),
    )


def _mamba2_block(
    blueprint: Blueprint,
    name: str,
    *,
    heads: int,
    head: int,
    groups: int,
    state_size: int,
    kernel: int,
    bias: bool,
    conv_bias: bool,
    output_bias: bool | None = None,
    norm: bool = True,
) -> None:
    """Mamba-2: a state of ``head`` x ``state_size`` for each head."""
    hidden, size = blueprint.hidden_size, heads * head
    convolved = size + 2 * groups * state_size
    blueprint.matrix("recurrent", name + ".in_proj", size + convolved + heads, hidden, bias=bias)
    last_bias = bias if output_bias is None else output_bias
    blueprint.matrix("recurrent", name + ".out_proj", hidden, size, bias=last_bias)
    blueprint.vector(convolved * (kernel + conv_bias) + 3 * heads)  # convolution; dt, A, D
    blueprint.vector(size if norm else 0)
    _recurs(blueprint, "mamba2", convolved * (kernel - 1), size * state_size)


def _mamba_block(
    blueprint: Blueprint,
    name: str,
    *,
    size: int,
    state_size: int,
    kernel: int,
    rank: int,
    bias: bool,
    conv_bias: bool,
) -> None:
    """Mamba: a state of ``state_size`` for each of ``size`` channels."""
    hidden = blueprint.hidden_size
    blueprint.matrix("recurrent", name + ".in_proj", 2 * size, hidden, bias=bias)
    blueprint.matrix("recurrent", name + ".x_proj", rank + 2 * state_size, size)
    blueprint.matrix("recurrent", name + ".dt_proj", size, rank, bias=True)
    blueprint.matrix("recurrent", name + ".out_proj", hidden, size, bias=bias)
    blueprint.vector(size * (kernel + conv_bias + state_size + 1))  # convolution, A, D
    _recurs(blueprint, "mamba", size * (kernel - 1), size * state_size)


def _recurs(blueprint: Blueprint, kind: str, conv_numbers: int, state_numbers: int) -> None:
    """A recurrent layer; the state has the model's dtype unless the config names another."""
    dtype = blueprint.dtype()
    named = blueprint.config.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    state_dtype = canonical_dtype(named) if named not in ("", "auto") else dtype
    blueprint.recurs(RecurrentGroup(1, kind, conv_numbers, state_numbers, dtype, state_dtype))


def _time_step_rank(config: Config, key: str) -> int:
    """The given rank, or hidden/16 rounded up where it is left to be derived."""
    if config.values.get(key) in (None, "auto"):
        return -(-config.size("hidden_size") // 16)
    return config.size(key)


def _mamba_head(config: Config, width: int) -> int:
    """The head size of Mamba-2: the width over its heads, which the config may repeat."""
    heads = config.size("mamba_n_heads")
    if config.values.get("mamba_d_head") not in (None, "auto"):
        given = config.size("mamba_d_head")
        if given * heads != width:
            raise config.error(f"mamba_d_head {given} x mamba_n_heads {heads} is not {width}")
        return given
    if width % heads:
        raise config.error(f"mamba_n_heads {heads} does not divide the width {width}")
    return width // heads


def _is_turn(config: Config, key: str, index: int) -> bool:
    """Whether a layer is one of those at ``offset`` in every ``period``."""
    period, offset = config.size(f"{key}_period"), config.size(f"{key}_offset", least=0)
    return index % period == offset
