"""Llama and the families that differ from it in biases, norms and windows only."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import attention, embeddings, gated_ffn, head_size, kv_heads


def llama(config: Config) -> Blueprint:
    """Llama 2 and 3; Granite and MiMo-like relatives share its shape."""
    return _stack(
        config,
        qkv_bias=config.flag("attention_bias", False),
        output_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
    )


def mistral(config: Config) -> Blueprint:
    """Mistral: Llama with an optional sliding window on every layer and 8 KV heads by default."""
    return _stack(
        config,
        default_kv_heads=8,
        windows=[config.optional_size("sliding_window")] * config.layers(),
    )


def qwen2(config: Config) -> Blueprint:
    """Qwen2 and Qwen2.5: biases on queries, keys and values; windows on the upper layers."""
    return _stack(config, default_kv_heads=32, qkv_bias=True, windows=qwen_windows(config))


def qwen3(config: Config) -> Blueprint:
    """Qwen3: norms on queries and keys, head size of its own (128 by default)."""
    bias = config.flag("attention_bias", False)
    return _stack(
        config,
        default_kv_heads=32,
        default_head_size=128,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        windows=qwen_windows(config),
    )


def qwen_windows(config: Config) -> list[int | None]:
    """Qwen's windows: from layer ``max_window_layers`` on, if ``use_sliding_window`` says so."""
    layers = config.layers()
    if not config.flag("use_sliding_window", False):
        return [None] * layers
    window = config.size("sliding_window", 4096)
    first = config.size("max_window_layers", 28, least=0)
    return [window if layer >= first else None for layer in range(layers)]


def _stack(
    config: Config,
    *,
    default_kv_heads: int | None = None,
    default_head_size: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    windows: list[int | None] | None = None,
) -> Blueprint:
    """Pre-norm layers of attention and a gated FFN with RMS norms."""
    blueprint = Blueprint(config)
    heads = config.size("num_attention_heads")
    size = (
        config.size("head_dim", default_head_size)
        if default_head_size is not None
        else head_size(config, heads)
    )
    blueprint.ffn_size = config.size("intermediate_size")
    for layer in range(blueprint.num_layers):
        attention(
            blueprint,
            layer,
            num_heads=heads,
            num_kv_heads=kv_heads(config, heads, default_kv_heads),
            head_size=size,
            window_tokens=windows[layer] if windows else None,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            qk_norm=2 * size if qk_norm else 0,
        )
        gated_ffn(blueprint, f"layers.{layer}.mlp", blueprint.ffn_size, bias=mlp_bias)
        blueprint.vector(2 * blueprint.hidden_size)
    blueprint.vector(blueprint.hidden_size)
    embeddings(blueprint, tied=config.flag("tie_word_embeddings", False))
    return blueprint
