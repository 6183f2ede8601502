"""Configs as they are published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from servefit.models import ModelShape, get_model

Read = Callable[[str], ModelShape]


@pytest.fixture
def read(servefit_data: Path) -> Read:
    def config(name: str) -> ModelShape:
        return get_model(servefit_data / "inputs" / "hf-configs" / f"{name}_config.json")

    return config


def test_qwen3_has_a_head_size_of_its_own(read: Read) -> None:
    shape = read("Qwen--Qwen3-0.6B")
    assert shape.kv_bytes_per_token == 114_688
    assert shape.num_parameters == get_model("Qwen3-0.6B").num_parameters


def test_fp8_weights_leave_the_cache_in_sixteen_bits(read: Read) -> None:
    shape = read("Qwen--Qwen3-30B-A3B-FP8")
    assert shape.kv_bytes_per_token == 98_304
    assert shape.num_parameters == 30_532_122_624
    assert shape.experts is not None
    assert (shape.experts.num_experts, shape.experts.experts_per_token) == (128, 8)
    assert shape.weight_bytes_by_part.other_matrices == 2 * shape.parameters.other_matrices
    assert 31.1e9 < shape.weight_bytes < 31.3e9


def test_deepseek_v3_keeps_a_latent(read: Read) -> None:
    shape = read("deepseek-ai--DeepSeek-V3")
    assert shape.kv_bytes_per_token == shape.kv_bytes_per_token_on_rank(8) == 70_272
    assert shape.num_parameters == 671_026_419_200
    assert 37e9 < shape.num_active_parameters < 38e9
    assert any("multi-token" in note for note in shape.notes)


def test_gpt_oss_caps_half_of_its_layers(read: Read) -> None:
    shape = read("openai--gpt-oss-20b")
    assert shape.kv_bytes_per_token_beyond_windows == 24_576
    assert float(shape.kv_bytes(1128)) == 24_576 * (1128 + 128)
    assert shape.num_parameters == 20_914_757_184
    assert (shape.weight_dtype, shape.kv_cache_dtype) == ("fp4", "bfloat16")
    assert 13.7e9 < shape.weight_bytes < 13.8e9


def test_mixtral_derives_its_head_size(read: Read) -> None:
    shape = read("mistralai--Mixtral-8x7B-v0.1")
    assert shape.kv_bytes_per_token == 131_072
    assert shape.num_parameters == 46_702_792_704
