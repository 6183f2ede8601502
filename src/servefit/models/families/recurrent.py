"""Recurrent blocks (Mamba, Mamba-2, gated delta net) and the models made of one alone."""

from __future__ import annotations

from servefit.dtypes import canonical_dtype
from servefit.models.blueprint import Blueprint
from servefit.models.config import Config
from servefit.models.families.blocks import decoder
from servefit.models.parts import RecurrentGroup


def mamba(config: Config) -> Blueprint:
    """Mamba and Falcon-Mamba."""
    given = config.optional_size("intermediate_size")
    size = given or config.size("expand") * config.size("hidden_size")

    def layer(blueprint: Blueprint, index: int) -> None:
        mamba_block(
            blueprint,
            f"layers.{index}.mixer",
            size=size,
            state_size=config.size("state_size"),
            kernel=config.size("conv_kernel"),
            rank=time_step_rank(config, "time_step_rank"),
            bias=config.flag("use_bias"),
            conv_bias=config.flag("use_conv_bias"),
        )

    return decoder(config, layer, norms=1)


def mamba2(config: Config) -> Blueprint:
    """Mamba-2."""

    def layer(blueprint: Blueprint, index: int) -> None:
        mamba2_block(
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


def time_step_rank(config: Config, key: str) -> int:
    """The given rank, or hidden/16 rounded up where it is left to be derived."""
    if config.values.get(key) in (None, "auto"):
        return -(-config.size("hidden_size") // 16)
    return config.size(key)


def mamba_block(
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


def mamba2_block(
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
    last_bias = bias if output_bias is None else output_bias
    blueprint.matrix("recurrent", name + ".in_proj", size + convolved + heads, hidden, bias=bias)
    blueprint.matrix("recurrent", name + ".out_proj", hidden, size, bias=last_bias)
    blueprint.vector(convolved * (kernel + conv_bias) + 3 * heads)  # convolution; dt, A, D
    blueprint.vector(size if norm else 0)
    _recurs(blueprint, "mamba2", convolved * (kernel - 1), size * state_size)


def gated_delta_net(blueprint: Blueprint, index: int) -> None:
    """Qwen's linear attention: a state of d_k x d_v for each value head."""
    config, hidden = blueprint.config, blueprint.hidden_size
    key_heads, heads = config.size("linear_num_key_heads"), config.size("linear_num_value_heads")
    key, value = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    kernel, values = config.size("linear_conv_kernel_dim"), heads * value
    convolved = 2 * key_heads * key + values
    name = f"layers.{index}.linear_attn."
    blueprint.matrix("recurrent", name + "in_proj_qkv", convolved, hidden)
    blueprint.matrix("recurrent", name + "in_proj_z", values, hidden)
    blueprint.matrix("recurrent", name + "in_proj_b", heads, hidden)
    blueprint.matrix("recurrent", name + "in_proj_a", heads, hidden)
    blueprint.matrix("recurrent", name + "out_proj", hidden, values)
    blueprint.vector(convolved * kernel + 2 * heads + value)  # convolution; dt, A; norm
    _recurs(blueprint, "gated delta net", convolved * (kernel - 1), heads * key * value)


def _recurs(blueprint: Blueprint, kind: str, conv_numbers: int, state_numbers: int) -> None:
    """A recurrent layer; the state has the model's dtype unless the config names another.

    The convolution keeps its last kernel - 1 inputs. Both as vLLM keeps them.
    """
    dtype = blueprint.dtype()
    named = blueprint.config.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    state_dtype = canonical_dtype(named) if named not in ("", "auto") else dtype
    blueprint.recurs(RecurrentGroup(1, kind, conv_numbers, state_numbers, dtype, state_dtype))
