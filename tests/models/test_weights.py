"""Bytes of weights: in memory, by format, and read by one decode step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.models import Experts, get_model, shape_from_config
from servefit.models.module_names import ModuleNames

from .known import BY_NAME, KNOWN, Known


def test_sixteen_bits_are_two_bytes_a_parameter() -> None:
    shape = get_model("opt-1.3b")
    assert shape.weight_bytes == 2 * 1_315_758_080
    assert shape.with_dtypes(weight_dtype="float32").weight_bytes == 4 * 1_315_758_080


def test_narrow_formats_leave_embeddings_and_norms_in_sixteen_bits() -> None:
    shape = get_model("Qwen3-8B")
    parts = shape.parameters
    fp8 = shape.with_dtypes(weight_dtype="fp8")
    kept = parts.embedding + parts.lm_head + parts.vectors
    assert fp8.weight_bytes == parts.attention + parts.ffn + 2 * kept


def test_a_step_reads_all_weights_but_the_input_embedding() -> None:
    untied = get_model("Qwen3-8B")
    assert float(untied.streamed_weight_bytes()) == 2 * (
        untied.num_parameters - untied.embedding_parameters
    )
    tied = get_model("Qwen3-0.6B")
    assert float(tied.streamed_weight_bytes()) == 2 * tied.num_parameters
    learned_positions = get_model("opt-125m")
    assert float(learned_positions.streamed_weight_bytes()) == 2 * (125_239_296 - 2050 * 768)


def test_a_mixture_reads_the_experts_that_its_tokens_pick() -> None:
    shape = get_model("Mixtral-8x7B-v0.1")
    experts = 2 * shape.parameters.experts
    read = shape.streamed_weight_bytes([1, 2, 10_000])
    dense = 2 * (shape.num_parameters - shape.parameters.experts - shape.embedding_parameters)
    distinct_of_two_tokens = 8 * (1 - 0.75**2)
    np.testing.assert_allclose(
        read, [dense + experts * k / 8 for k in (2, distinct_of_two_tokens, 8)], rtol=1e-12
    )


@given(st.integers(1, 300), st.data())
def test_expected_distinct_experts_is_right_for_one_token_and_never_exceeds_all(
    count: int, data: st.DataObject
) -> None:
    used = data.draw(st.integers(1, count))
    tokens = data.draw(st.integers(1, 10**6))
    distinct = Experts(1, count, used, 1).expected_distinct([1, tokens, tokens + 1])
    assert distinct[0] == pytest.approx(used)
    assert used - 1e-9 <= distinct[1] <= distinct[2] + 1e-9
    assert distinct[2] <= min(count, used * (tokens + 1)) + 1e-9


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_parts_add_up_and_nothing_streams_more_than_there_is(known: Known) -> None:
    shape = shape_from_config(known.config, known.name)
    assert shape.weight_bytes == shape.weight_bytes_by_part.total == 2 * shape.num_parameters
    assert shape.num_matmul_parameters <= shape.num_active_parameters <= shape.num_parameters
    read = shape.streamed_weight_bytes([1, 1e9])
    assert 0 < read[0] <= read[1] <= shape.weight_bytes
    assert hash(shape) == hash(shape_from_config(known.config, known.name))


def test_fp8_blocks_add_a_scale_for_each_block() -> None:
    config = BY_NAME["Qwen3-235B-A22B"].config
    quantised = {
        **config,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
        },
    }
    plain, fp8 = shape_from_config(config, "x"), shape_from_config(quantised, "x")
    parts, stored = plain.parameters, fp8.weight_bytes_by_part
    assert stored.experts == parts.experts * (1 + 4 / 128**2)
    assert stored.attention == parts.attention * (1 + 4 / 128**2)
    assert stored.embedding == 2 * parts.embedding
    assert stored.lm_head == 2 * parts.lm_head
    assert stored.other_matrices == 2 * parts.other_matrices
    assert (fp8.weight_dtype, fp8.kv_cache_dtype) == ("fp8", "bfloat16")
    assert fp8.kv_bytes_per_token == plain.kv_bytes_per_token
    assert fp8.num_parameters == plain.num_parameters


SMALL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}
ATTENTION = 2 * (2 * 256 * 256 + 2 * 128 * 256)
FFN = 2 * 3 * 256 * 512
ROWS = 2 * (256 + 128 + 128 + 256 + 512 + 512 + 256)  # rows of all these matrices
COLUMNS = 2 * (4 * 256 + 2 * 256 + 512)
MATRICES = 2 * 7
KEPT = 2 * (2 * 1000 * 256 + (2 * 2 + 1) * 256)


@pytest.mark.parametrize(
    ("quantisation", "dtype", "linear_bytes"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", ATTENTION + FFN + 56),
        ({"quant_method": "fbgemm_fp8"}, "fp8", ATTENTION + FFN + 4 * ROWS),
        # 4 bits, a 16-bit scale and a 4-bit zero point a group of 128, an index a column
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128},
            "int4",
            (ATTENTION + FFN) * (0.5 + 2.5 / 128) + 4 * COLUMNS,
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "dynamic": {}},
            "int8",
            ATTENTION + FFN + 3 * ROWS + 4 * COLUMNS,
        ),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
            "int4",
            (ATTENTION + FFN) * (0.5 + 2.5 / 64),
        ),
        ({"quant_method": "mxfp4"}, "fp4", (ATTENTION + FFN) * (0.5 + 1 / 32)),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            "fp4",
            (ATTENTION + FFN) * (0.5 + 1 / 16) + 4 * MATRICES,
        ),
        (
            {"quantization": {"quant_algo": "FP8", "exclude_modules": ["*self_attn*"]}},
            "fp8",
            2 * ATTENTION + FFN + 4 * 6,
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "int4",
            (ATTENTION + FFN) * (0.5 + 4 / 64),
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            "int8",
            ATTENTION + FFN + 4 * ROWS,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
                    }
                },
                "ignore": ["lm_head", "re:.*mlp\\.(gate|up)_proj.*"],
            },
            "fp8",
            ATTENTION + FFN / 3 + 2 * FFN * 2 / 3 + 2 * (ROWS - 2 * 2 * 512),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {
                            "num_bits": 4,
                            "type": "int",
                            "strategy": "group",
                            "group_size": 32,
                            "symmetric": True,
                        },
                    }
                },
                "ignore": ["model.layers.1.self_attn.q_proj"],
            },
            "int4",
            (ATTENTION + FFN - 65536) * (0.5 + 2 / 32) + 2 * 65536,
        ),
    ],
)
def test_each_format_takes_its_numbers_and_scales(
    quantisation: dict[str, object], dtype: str, linear_bytes: float
) -> None:
    shape = shape_from_config({**SMALL, "quantization_config": quantisation}, "x")
    assert shape.weight_dtype == dtype
    assert shape.kv_cache_dtype == "float16"
    assert shape.weight_bytes == pytest.approx(linear_bytes + KEPT, rel=1e-12)


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        ({"kv_cache_scheme": None}, "float16"),
        ({"kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"kv_cache_quant_algo": None}, "float16"),
    ],
)
def test_the_cache_is_quantised_only_when_the_config_says_so(
    scheme: dict[str, object], expected: str
) -> None:
    quantisation = {"quant_method": "modelopt", "quant_algo": "FP8", **scheme}
    shape = shape_from_config({**SMALL, "quantization_config": quantisation}, "x")
    assert shape.kv_cache_dtype == expected


def test_mixed_precision_follows_the_list_of_layers() -> None:
    quantisation = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp": {"quant_algo": "NVFP4"},
            "model.layers.1.mlp.down_proj": {"quant_algo": "FP8"},
            "lm_head": {"quant_algo": "FP8"},
        },
    }
    stored = shape_from_config(
        {**SMALL, "quantization_config": quantisation}, "x"
    ).weight_bytes_by_part
    one = 256 * 512
    assert stored.ffn == 3 * (one * 0.5625 + 4) + 2 * 2 * one + one + 4
    assert stored.attention == 2 * ATTENTION
    assert stored.lm_head == 1000 * 256 + 4


def test_asking_for_another_format_drops_the_stored_one() -> None:
    quantisation = {"quant_method": "fp8"}
    shape = shape_from_config({**SMALL, "quantization_config": quantisation}, "x")
    assert shape.with_dtypes(weight_dtype="bfloat16").weight_bytes == 2 * shape.num_parameters
    assert shape.with_dtypes(weight_dtype="fp8").weight_bytes == shape.weight_bytes


def test_a_plain_module_name_covers_what_is_below_it_and_not_its_namesakes() -> None:
    names = ModuleNames(["gate", "model.layers.1.mlp", "language_model.model.layers.2.x*"])
    assert names.match("layers.0.mlp.gate")
    assert not names.match("layers.0.mlp.gate_proj")
    assert names.match("layers.1.mlp.up_proj")
    assert not names.match("layers.11.mlp.up_proj")
    assert names.match("layers.2.xyz.w")
    assert not ModuleNames(["mtp.layers.0*"]).match("layers.0.mlp")
