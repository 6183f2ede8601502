"""Decoders of any small shape with random weights, in CTranslate2's format.

What a batch costs depends on the shape, not on what the weights say, so random ones will do: no
download, no tokenizer, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from servefit.errors import ServefitError

#: Tokens ``<unk>``, ``<s>`` and ``</s>`` come first; the others are ordinary.
NUM_SPECIAL_TOKENS = 3

Float32Array = npt.NDArray[np.float32]


def require_ctranslate2() -> Any:
    """The ctranslate2 module; raises `ServefitError` with the remedy where it is not installed."""
    try:
        import ctranslate2
    except ImportError as error:
        raise ServefitError(
            "the embedded engine needs ctranslate2, which is not installed: "
            "pip install 'servefit[local]'"
        ) from error
    return ctranslate2


def opt_config(num_layers: int, hidden_size: int, *, vocab_size: int = 8192) -> dict[str, Any]:
    """An OPT-style ``config.json``: heads of 64, FFN four times as wide (r_ff = 4 in Eq. 8)."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": hidden_size // 64,
        "ffn_dim": 4 * hidden_size,
        "vocab_size": vocab_size,
        "word_embed_proj_dim": hidden_size,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def llama_config(
    num_layers: int,
    hidden_size: int,
    *,
    num_key_value_heads: int | None = None,
    intermediate_size: int | None = None,
    vocab_size: int = 8192,
) -> dict[str, Any]:
    """A Llama-style ``config.json``: heads of 64, rotary positions, RMS norms, a gated FFN.

    Args:
        num_layers: L.
        hidden_size: D, a multiple of 64.
        num_key_value_heads: fewer than D/64 makes it grouped-query attention.
        intermediate_size: FFN width; 8/3 D, rounded up to a multiple of 64, unless given.
        vocab_size: tokens.
    """
    heads = hidden_size // 64
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": num_layers,
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "num_key_value_heads": num_key_value_heads or heads,
        "intermediate_size": intermediate_size or -(-8 * hidden_size // (3 * 64)) * 64,
        "vocab_size": vocab_size,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def write_decoder(config: Mapping[str, Any], folder: Path, *, seed: int = 0) -> None:
    """Write a decoder of ``config``'s shape with random float32 weights into ``folder``.

    Args:
        config: a HuggingFace ``config.json`` of type ``opt`` or ``llama``.
        folder: an empty folder; it can then be loaded as a CTranslate2 model.
        seed: of the weights.

    Raises:
        ServefitError: a shape that this builder does not know, or ctranslate2 is not installed.
    """
    require_ctranslate2()
    weights = _RandomWeights(seed)
    kind = config.get("model_type")
    if kind == "opt":
        spec = _opt_spec(config, weights)
    elif kind == "llama":
        spec = _llama_spec(config, weights)
    else:
        raise ServefitError(f"model_type = {kind!r}: the embedded engine builds 'opt' or 'llama'")
    names = [str(token) for token in range(_field(config, "vocab_size"))]
    names[:NUM_SPECIAL_TOKENS] = ["<unk>", "<s>", "</s>"]
    spec.register_vocabulary(names)
    spec.validate()
    # Weights given twice (tied embeddings) are stored once.
    spec.optimize()
    spec.save(str(folder))


class _RandomWeights:
    """Fills the layers of a CTranslate2 specification."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int) -> Float32Array:
        """Unit variance is kept from layer to layer, so that activations stay finite."""
        values = self._generator.standard_normal((rows, columns), dtype=np.float32)
        return values / np.float32(columns**0.5)

    def linear(self, layer: Any, outputs: int, inputs: int, *, bias: bool) -> None:
        layer.weight = self.matrix(outputs, inputs)
        if bias:
            layer.bias = self._near(0.0, outputs)

    def norm(self, layer: Any, size: int) -> None:
        layer.gamma = self._near(1.0, size)
        if hasattr(layer, "beta"):
            layer.beta = self._near(0.0, size)

    def _near(self, value: float, size: int) -> Float32Array:
        noise = self._generator.standard_normal(size, dtype=np.float32)
        return np.float32(value) + np.float32(0.02) * noise


def _opt_spec(config: Mapping[str, Any], weights: _RandomWeights) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    hidden = _field(config, "hidden_size")
    if config.get("word_embed_proj_dim", hidden) != hidden:
        raise ServefitError(
            f"word_embed_proj_dim = {config['word_embed_proj_dim']}: the embedded engine has no "
            f"embedding projections, it must equal hidden_size = {hidden}"
        )
    heads = _heads(config, hidden)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        _field(config, "num_hidden_layers"), heads, activation=common_spec.Activation.RELU
    )
    decoder = spec.decoder
    decoder.position_encodings.encodings = weights.matrix(
        _field(config, "max_position_embeddings"), hidden
    )
    _fill(decoder, config, weights, kv_size=hidden, ffn=_field(config, "ffn_dim"), bias=True)
    return spec


def _llama_spec(config: Mapping[str, Any], weights: _RandomWeights) -> Any:
    from ctranslate2.specs import common_spec, transformer_spec

    hidden = _field(config, "hidden_size")
    heads = _heads(config, hidden)
    kv_heads = _field(config, "num_key_value_heads")
    if heads % kv_heads:
        raise ServefitError(
            f"num_key_value_heads = {kv_heads}: must divide num_attention_heads = {heads}"
        )
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        _field(config, "num_hidden_layers"),
        heads,
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,  # the whole head
        rotary_interleave=False,
        num_heads_kv=None if kv_heads == heads else kv_heads,
    )
    kv_size = kv_heads * (hidden // heads)
    ffn = _field(config, "intermediate_size")
    _fill(spec.decoder, config, weights, kv_size=kv_size, ffn=ffn, bias=False)
    return spec


def _fill(
    decoder: Any,
    config: Mapping[str, Any],
    weights: _RandomWeights,
    *,
    kv_size: int,
    ffn: int,
    bias: bool,
) -> None:
    hidden, vocabulary = _field(config, "hidden_size"), _field(config, "vocab_size")
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights.matrix(vocabulary, hidden)
    tied = config.get("tie_word_embeddings", bias)
    decoder.projection.weight = (
        decoder.embeddings.weight if tied else weights.matrix(vocabulary, hidden)
    )
    weights.norm(decoder.layer_norm, hidden)
    for layer in decoder.layer:
        attention = layer.self_attention
        weights.norm(attention.layer_norm, hidden)
        weights.linear(attention.linear[0], hidden + 2 * kv_size, hidden, bias=bias)
        weights.linear(attention.linear[1], hidden, hidden, bias=bias)
        weights.norm(layer.ffn.layer_norm, hidden)
        weights.linear(layer.ffn.linear_0, ffn, hidden, bias=bias)
        if hasattr(layer.ffn, "linear_0_noact"):
            weights.linear(layer.ffn.linear_0_noact, ffn, hidden, bias=bias)
        weights.linear(layer.ffn.linear_1, hidden, ffn, bias=bias)


def _heads(config: Mapping[str, Any], hidden: int) -> int:
    heads = _field(config, "num_attention_heads")
    if hidden % heads or config.get("head_dim", hidden // heads) != hidden // heads:
        raise ServefitError(
            f"num_attention_heads = {heads}: must divide hidden_size = {hidden}, and the "
            "embedded engine's heads are hidden_size / num_attention_heads wide"
        )
    return heads


def _field(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ServefitError(f"config.json: {name} = {value!r} must be a positive whole number")
    return value
