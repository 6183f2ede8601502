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
    mixture,
    windows,
)
from servefit.models.families.gated import qwen_windows
from servefit.models.parts import Experts


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
    """Mixtral: every FFN is a mixture; a window on every layer, if any."""
    return _all_mixed(config, layer_windows=windows(config, lambda layer: True))


def granite_moe(config: Config) -> Blueprint:
    """Granite MoE."""
    return _all_mixed(config, bias=config.flag("attention_bias"))


def phimoe(config: Config) -> Blueprint:
    """Phi-3.5-MoE: biases in attention, norms and LM head."""
    return _all_mixed(
        config,
        bias=config.flag("attention_bias"),
        norm_bias=True,
        head_bias=config.flag("lm_head_bias"),
        layer_windows=windows(config, lambda layer: True),
    )


def _all_mixed(
    config: Config,
    *,
    bias: bool = False,
    norm_bias: bool = False,
    head_bias: bool = False,
    layer_windows: list[int | None] | None = None,
) -> Blueprint:
    experts = local_experts(config)

    def layer(blueprint: Blueprint, index: int) -> None:
        window = layer_windows[index] if layer_windows else None
        attention(blueprint, index, window_tokens=window, bias=bias)
        mixture(blueprint, f"layers.{index}.block_sparse_moe", experts)

    return decoder(config, layer, norm_bias=norm_bias, head_bias=head_bias)


def minimax_m2(config: Config) -> Blueprint:
    """MiniMax-M2: norms over all queries and all keys, a bias on the router's scores."""
    experts = local_experts(config)
    normed_heads = config.size("num_attention_heads") + kv_heads(config)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index)
        blueprint.vector(normed_heads * head_size(config))
        mixture(blueprint, f"layers.{index}.block_sparse_moe", experts)
        blueprint.vector(experts.num_experts)

    blueprint = decoder(config, layer)
    if config.flag("use_mtp"):
        blueprint.notes.append("its multi-token-prediction modules are not counted")
    return blueprint


def gpt_oss(config: Config) -> Blueprint:
    """gpt-oss: every other layer has a window, the first one included; biases and sinks."""
    layer_windows = windows(config, lambda layer: layer % 2 == 0)
    bias, experts = config.flag("attention_bias"), local_experts(config)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, window_tokens=layer_windows[index], bias=bias)
        blueprint.vector(config.size("num_attention_heads"))  # sinks
        mixture(blueprint, f"layers.{index}.mlp", experts, router="router", bias=True)

    return decoder(config, layer)


def llama4(config: Config) -> Blueprint:
    """Llama 4: three chunked layers to a full one; mixtures have a shared expert."""
    layers, interval = config.layers(), config.size("no_rope_layer_interval")
    rope = config.indices("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
    if len(rope) != layers:
        raise config.error(f"no_rope_layers: {len(rope)} entries for {layers} layers")
    chunks = windows(
        config,
        lambda layer: rope[layer] != 0,
        key="attention_chunk_size",
        label="chunked_attention",
    )
    step, mixed = config.size("interleave_moe_layer_step"), config.indices("moe_layers")
    mixed = list(range(step - 1, layers, step)) if mixed is None else mixed
    size, bias = config.size("intermediate_size"), config.flag("attention_bias")
    experts = local_experts(config, shared_ffn_size=size)

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(blueprint, index, window_tokens=chunks[index], bias=bias)
        if index in mixed:
            name = f"layers.{index}.feed_forward"
            mixture(blueprint, name, experts, router="router")
            gated_ffn(blueprint, f"{name}.shared_expert", size)
        else:
            dense_ffn(blueprint, index, config.size("intermediate_size_mlp"))

    return decoder(config, layer)


def qwen2_moe(config: Config) -> Blueprint:
    """Qwen1.5-MoE and Qwen2-MoE: a gated shared expert beside the mixture."""
    layer_windows, bias = qwen_windows(config), config.flag("qkv_bias")
    ffn = qwen_ffn(config, shared=True)

    def layer(blueprint: Blueprint, index: int) -> None:
        window = layer_windows[index]
        attention(blueprint, index, window_tokens=window, bias=bias, output_bias=False)
        ffn(blueprint, index)

    return decoder(config, layer)


def qwen3_moe(config: Config) -> Blueprint:
    """Qwen3-MoE: norms on queries and keys, no shared expert."""
    layer_windows = windows(config, lambda layer: config.flag("use_sliding_window"))
    bias, ffn = config.flag("attention_bias"), qwen_ffn(config, shared=False)

    def layer(blueprint: Blueprint, index: int) -> None:
        window = layer_windows[index]
        attention(blueprint, index, window_tokens=window, bias=bias, qk_norm=True)
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
