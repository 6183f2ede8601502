"""Dense Transformers with a gated FFN: Llama and its relatives."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import attention, decoder, dense_ffn, windows


def llama(config: Config) -> Blueprint:
    """Llama 2 and 3, Granite, and Gemma, which has a head size of its own."""
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    return gated_decoder(config, bias=bias, mlp_bias=mlp_bias)


def mistral(config: Config) -> Blueprint:
    """Mistral: a window on every layer, if any; Phi-3 and Phi-4 have the same shape."""
    return gated_decoder(config, layer_windows=windows(config, lambda layer: True))


def qwen2(config: Config) -> Blueprint:
    """Qwen2 and Qwen2.5: biases on queries, keys and values; windows on the upper layers."""
    upper = qwen_windows(config)
    return gated_decoder(config, bias=True, output_bias=False, layer_windows=upper)


def qwen3(config: Config) -> Blueprint:
    """Qwen3: norms on queries and keys, a head size of its own."""
    bias = config.flag("attention_bias")
    return gated_decoder(config, bias=bias, qk_norm=True, layer_windows=qwen_windows(config))


def gemma2(config: Config) -> Blueprint:
    """Gemma 2: every other layer has a window, the first one included; four norms a layer."""
    bias = config.flag("attention_bias")
    layer_windows = windows(config, lambda layer: layer % 2 == 0)
    return gated_decoder(config, bias=bias, norms=4, layer_windows=layer_windows)


def gemma3(config: Config) -> Blueprint:
    """Gemma 3: five windowed layers to a full one; norms on queries and keys."""
    config.refuse("use_bidirectional_attention", "an encoder keeps no KV cache")
    bias, pattern = config.flag("attention_bias"), config.size("sliding_window_pattern")
    layer_windows = windows(config, lambda layer: (layer + 1) % pattern != 0)
    return gated_decoder(config, bias=bias, qk_norm=True, norms=4, layer_windows=layer_windows)


def qwen_windows(config: Config) -> list[int | None]:
    """Qwen's windows: from layer ``max_window_layers`` on, if ``use_sliding_window`` says so."""
    if not config.flag("use_sliding_window"):
        return [None] * config.layers()
    first = config.optional_size("max_window_layers", least=0) or 0
    return windows(config, lambda layer: layer >= first)


def gated_decoder(
    config: Config,
    *,
    bias: bool = False,
    output_bias: bool | None = None,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    norms: int = 2,
    layer_windows: list[int | None] | None = None,
) -> Blueprint:
    """Layers of grouped-query attention and a gated FFN."""

    def layer(blueprint: Blueprint, index: int) -> None:
        attention(
            blueprint,
            index,
            window_tokens=layer_windows[index] if layer_windows else None,
            bias=bias,
            output_bias=output_bias,
            qk_norm=qk_norm,
        )
        dense_ffn(blueprint, index, config.size("intermediate_size"), bias=mlp_bias)

    return decoder(config, layer, norms=norms)
