"""What the KV cache and recurrent states of a request take."""

from __future__ import annotations

import numpy as np
import pytest

from servefit.errors import ServefitError
from servefit.models import AttentionGroup, get_model, shape_from_config

from .known import BY_NAME

QWEN3 = {
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201088,
}


def test_the_head_size_is_not_hidden_over_heads() -> None:
    assert shape_from_config(QWEN3, "x").kv_bytes_per_token == 2 * 28 * 8 * 128 * 2


def test_windowed_layers_stop_growing_at_their_window() -> None:
    shape = shape_from_config(GPT_OSS, "x")
    one_kind = 2 * 12 * 8 * 64 * 2
    assert shape.kv_bytes_per_token == 2 * one_kind
    assert shape.kv_bytes_per_token_beyond_windows == one_kind
    np.testing.assert_array_equal(
        shape.kv_bytes([0, 1, 128, 129, 1000]),
        [0, 2 * one_kind, 256 * one_kind, (128 + 129) * one_kind, 1128 * one_kind],
    )


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("gemma-2-27b", [(23, 4096), (23, None)]),
        ("gemma-3-4b-it", [(29, 1024), (5, None)]),
        ("Phi-3-mini-4k-instruct", [(32, 2047)]),
        ("Llama-4-Scout-17B-16E", [(36, 8192), (12, None)]),
        ("gemma-4-26B-A4B", [(25, 1024), (5, None)]),
        ("Jamba-v0.1", [(4, None)]),
        ("Nemotron-H-56B-Base-8K", [(10, None)]),
        ("mamba-2.8b-hf", []),
    ],
)
def test_layers_are_grouped_by_their_window(name: str, kinds: list[tuple[int, int | None]]) -> None:
    shape = shape_from_config(BY_NAME[name].config, name)
    assert [(group.num_layers, group.window_tokens) for group in shape.attention] == kinds


def test_two_kv_shapes_are_kept_apart() -> None:
    shape = shape_from_config(BY_NAME["gemma-4-26B-A4B"].config, "gemma")
    assert [(g.num_kv_heads, g.head_size) for g in shape.attention] == [(8, 256), (2, 512)]


def test_a_missing_window_takes_the_default_of_the_class_and_null_means_none() -> None:
    config = {
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    missing = shape_from_config(config, "x")
    null = shape_from_config({**config, "sliding_window": None, "num_key_value_heads": None}, "x")
    assert (missing.attention[0].window_tokens, missing.num_kv_heads) == (4096, 8)
    assert (null.attention[0].window_tokens, null.num_kv_heads) == (None, 8)
    assert get_model("Mistral-7B-v0.1").attention[0].window_tokens == 4096
    assert get_model("Mistral-7B-v0.3").attention[0].window_tokens is None


def test_qwen_windows_apply_only_when_switched_on_and_above_their_first_layer() -> None:
    config = {**QWEN3, "sliding_window": 512, "max_window_layers": 20}
    assert shape_from_config(config, "x").attention[0].window_tokens is None
    on = shape_from_config({**config, "use_sliding_window": True}, "x")
    assert [(g.num_layers, g.window_tokens) for g in on.attention] == [(20, None), (8, 512)]


def test_explicit_layer_types_come_before_the_pattern_of_the_family() -> None:
    types = ["full_attention"] * 23 + ["sliding_attention"]
    shape = shape_from_config({**GPT_OSS, "layer_types": types}, "x")
    assert [(g.num_layers, g.window_tokens) for g in shape.attention] == [(23, None), (1, 128)]


def test_kv_heads_are_sharded_down_to_one_whole_head_a_rank() -> None:
    llama = get_model("Llama-3.1-8B")
    by_rank = [llama.kv_bytes_per_token_on_rank(t) * t / 131072 for t in (1, 2, 8, 16, 32)]
    assert by_rank == [1, 1, 1, 2, 4]
    with pytest.raises(ServefitError, match="tensor_parallel_size = 0"):
        llama.kv_bytes_per_token_on_rank(0)


def test_an_mla_latent_is_whole_on_every_rank() -> None:
    shape = shape_from_config(BY_NAME["DeepSeek-V2"].config, "x")
    assert shape.kv_bytes_per_token_on_rank(8) == shape.kv_bytes_per_token == 60 * (512 + 64) * 2
    assert shape.kv_width == 288


def test_shared_caches_are_held_once_and_read_again() -> None:
    config = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 500,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 8,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 0,
    }
    shape = shape_from_config(config, "x")
    assert shape.kv_bytes_per_token == 2 * 2 * (2 * 16) * 2
    assert float(shape.kv_read_bytes(5)) == 2 * float(shape.kv_bytes(5))
    assert shape.num_layers == 4


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [
        # conv: 5120 x 3; state: 5120 x 16, 64 layers, 16 bits
        ("mamba-2.8b-hf", 64 * 2 * (5120 * 3 + 5120 * 16)),
        # conv: (128 x 64 + 2 x 8 x 128) x 3; state: 128 x 64 x 128
        ("Mamba-Codestral-7B-v0.1", 64 * 2 * (10240 * 3 + 128 * 64 * 128)),
        ("Jamba-v0.1", 28 * 2 * (8192 * 3 + 8192 * 16)),
        # conv: (2 x 16 x 128 + 32 x 128) x 3; state: 32 x 128 x 128
        ("Qwen3-Next-80B-A3B", 36 * 2 * (8192 * 3 + 32 * 128 * 128)),
        # its state is kept in 32 bits
        (
            "NVIDIA-Nemotron-3-Nano-30B-A3B",
            23 * ((64 * 64 + 2 * 8 * 128) * 3 * 2 + 64 * 64 * 128 * 4),
        ),
        ("phi-2", 0),
    ],
)
def test_recurrent_states_take_the_same_for_every_request(name: str, state_bytes: int) -> None:
    shape = shape_from_config(BY_NAME[name].config, name)
    assert shape.state_bytes_per_request == state_bytes


def test_the_cache_dtype_follows_the_model_or_the_user() -> None:
    shape = get_model("Qwen3-32B")
    assert shape.kv_cache_dtype == "bfloat16"
    fp8 = shape.with_dtypes(kv_cache_dtype="fp8_e4m3")
    assert fp8.kv_bytes_per_token == shape.kv_bytes_per_token / 2
    assert fp8.weight_bytes == shape.weight_bytes
    with pytest.raises(ServefitError, match="unknown dtype 'fp7'"):
        shape.with_dtypes(kv_cache_dtype="fp7")


def test_attention_flops_follow_the_query_heads_and_the_pairs() -> None:
    shape = get_model("Qwen3-32B")  # 64 query heads of 128, hidden 5120
    assert float(shape.decode_attention_flops(1000)) == 64 * 2 * 64 * 256 * 1000
    assert float(shape.prefill_attention_flops(1000)) == 64 * 2 * 64 * 256 * 1000 * 1001 / 2


def test_mla_attends_on_its_latent_in_decode_and_on_whole_heads_in_prefill() -> None:
    shape = shape_from_config(BY_NAME["DeepSeek-V2"].config, "x")
    assert float(shape.decode_attention_flops(1)) == 60 * 2 * 128 * (576 + 512)
    assert float(shape.prefill_attention_flops(1)) == 60 * 2 * 128 * (192 + 128)


def test_windowed_pairs_are_those_of_a_counting_loop() -> None:
    group = AttentionGroup(1, 1, 1, window_tokens=5)
    for length in range(12):
        counted = sum(min(query, 5) for query in range(1, length + 1))
        assert float(group.causal_pairs(length)) == counted
