"""Nemotron NAS (DeciLM): a Llama whose layers were each searched for."""

from __future__ import annotations

from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import attention, dense_ffn, embeddings


def nemotron_nas(config: Config) -> Blueprint:
    """Each layer's attention and FFN as ``block_configs`` lists them; either may be missing."""
    blocks = config.sections("block_configs")
    blueprint = Blueprint(config)
    if len(blocks) != blueprint.num_layers:
        raise config.error(f"block_configs: {len(blocks)} blocks, {blueprint.num_layers} layers")
    for index, block in enumerate(blocks):
        _attention(blueprint, index, _required(block, "attention"))
        _ffn(blueprint, index, _required(block, "ffn"))
    blueprint.vector(blueprint.hidden_size)
    embeddings(blueprint)
    return blueprint


def _attention(blueprint: Blueprint, index: int, block: Config) -> None:
    config, hidden = blueprint.config, blueprint.hidden_size
    if block.flag("no_op"):
        return
    blueprint.vector(hidden)
    if block.flag("replace_with_linear"):
        blueprint.matrix("ffn", f"layers.{index}.self_attn.linear_attn", hidden, hidden)
        return
    for key in ("sparsify", "num_sink_tokens", "unshifted_sink"):
        block.refuse(key, "its KV cache is not known")
    heads, group = config.size("num_attention_heads"), block.size("n_heads_in_group")
    if heads % group:
        raise block.error(f"n_heads_in_group {group}: must divide {heads} attention heads")
    attention(
        blueprint,
        index,
        num_kv_heads=heads // group,
        window_tokens=block.optional_size("window_length"),
        bias=config.flag("attention_bias"),
    )


def _ffn(blueprint: Blueprint, index: int, block: Config) -> None:
    hidden = blueprint.hidden_size
    if block.flag("no_op"):
        return
    blueprint.vector(hidden)
    if block.flag("replace_with_linear"):
        blueprint.matrix("ffn", f"layers.{index}.mlp.linear_mlp", hidden, hidden)
        return
    for key in ("sparsify", "moe"):
        block.refuse(key, "its shape is not known")
    size = block.optional_size("intermediate_size")
    if size is None:  # two thirds of ffn_mult x hidden, rounded up to a multiple of 256
        size = -(-int(2 * block.number("ffn_mult") * hidden / 3) // 256) * 256
    dense_ffn(blueprint, index, size, bias=blueprint.config.flag("mlp_bias"))


def _required(block: Config, key: str) -> Config:
    section = block.section(key)
    if section is None:
        raise block.error(f"{key} is missing")
    return section
