"""Configs that cannot be read say why, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.models import get_model, shape_from_config
from servefit.models.families import FAMILIES

from .known import KNOWN
from .test_weights import SMALL


def refused(config: Any, match: str) -> None:
    with pytest.raises(ServefitError, match=match) as caught:
        shape_from_config(config, "a model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"]
)
def test_a_missing_size_is_named(key: str) -> None:
    refused({k: v for k, v in SMALL.items() if k != key}, f"{key} is missing")
    refused({**SMALL, key: None}, f"{key} is null")


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        1.5,
        "32",
        True,
        [32],
        {},
        1e30,
        10**30,
        pytest.param(10**5000, id="5000 digits"),
        float("nan"),
    ],
)
@pytest.mark.parametrize("key", ["num_attention_heads", "hidden_size", "num_hidden_layers"])
def test_an_impossible_size_is_named_with_its_value(key: str, value: Any) -> None:
    refused({**SMALL, key: value}, f"'a model': {key} = ")


def test_sizes_must_fit_each_other() -> None:
    refused({**SMALL, "num_attention_heads": 3, "num_key_value_heads": 3}, "not a multiple of")
    refused({**SMALL, "num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3")
    mixtral = {**SMALL, "model_type": "mixtral", "num_local_experts": 4}
    refused({**mixtral, "num_experts_per_tok": 5}, "there are only 4")


def test_layer_types_must_be_known_and_one_for_each_layer() -> None:
    gemma = {**SMALL, "model_type": "gemma2"}
    refused({**gemma, "layer_types": ["full_attention"]}, "1 entries for 2 layers")
    refused({**gemma, "layer_types": ["full_attention", "warp"]}, "'warp' is not known")
    refused({**gemma, "layer_types": "full"}, "must be a list")


@pytest.mark.parametrize("name", ["warpformer", "deepseek_v32", "", "LLAMA"])
def test_an_unknown_family_is_refused_by_name_with_those_known(name: str) -> None:
    refused({**SMALL, "model_type": name}, f"{name or 'without model_type'}.*known are.*llama")


def test_an_unknown_language_model_of_a_multimodal_model_is_refused_too() -> None:
    refused({"model_type": "llama", "text_config": {"model_type": "warp"}}, "'warp' is not known")
    refused({"model_type": "llama", "text_config": 3}, "text_config = 3: must be an object")


@pytest.mark.parametrize(
    ("quantisation", "match"),
    [
        ({"quant_method": "warp"}, "quantisation 'warp' is not known; known are awq"),
        ({}, "without quant_method"),
        ("fp8", "must be an object"),
        ({"quant_method": "modelopt", "quant_algo": "W1"}, "quant_algo 'W1' is not known"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "two positive numbers"),
        ({"quant_method": "gptq"}, "bits is missing"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {}}}, "not supported"),
        ({"quant_method": "compressed-tensors"}, "no group quantises weights"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:(a+)+$"]}, "too complex"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:["]}, "module pattern"),
        ({"quant_method": "fp8", "modules_to_not_convert": [1]}, "list of strings"),
        (
            {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT2"},
            "KV cache quantisation 'INT2' is not known",
        ),
    ],
)
def test_an_unknown_quantisation_is_refused_by_name(quantisation: Any, match: str) -> None:
    refused({**SMALL, "quantization_config": quantisation}, match)


def test_an_unknown_dtype_is_refused() -> None:
    refused({**SMALL, "torch_dtype": "float8"}, "dtype 'float8'")


def test_nemotron_nas_blocks_that_are_not_known_are_refused() -> None:
    block: dict[str, Any] = {
        "attention": {"n_heads_in_group": 2, "no_op": False},
        "ffn": {"ffn_mult": 2.0, "no_op": False},
    }
    config = {**SMALL, "model_type": "nemotron-nas", "intermediate_size": None}
    refused(config, "0 blocks, 2 layers")
    refused({**config, "block_configs": [block, {}]}, r"block_configs\[1\].*attention is missing")
    sink = {**block, "attention": {**block["attention"], "num_sink_tokens": 4}}
    refused({**config, "block_configs": [block, sink]}, "num_sink_tokens = 4 is not supported")


def test_nemotron_nas_blocks_differ_from_layer_to_layer() -> None:
    config = {
        **SMALL,
        "model_type": "nemotron-nas",
        "intermediate_size": None,
        "num_key_value_heads": None,
        "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}},
            {"attention": {"no_op": True}, "ffn": {"no_op": True}},
        ],
    }
    shape = shape_from_config(config, "x")
    assert shape.num_layers == 2
    assert [(g.num_layers, g.num_kv_heads) for g in shape.attention] == [(1, 2)]
    assert shape.parameters.ffn == 3 * 256 * 512
    assert shape.parameters.vectors == 3 * 256


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"{}", "without model_type"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ServefitError, match=match):
        get_model(file)
    with pytest.raises(ServefitError, match=match):
        get_model(tmp_path)


def test_numbers_that_are_not_finite_do_no_harm_where_they_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**SMALL, "time_step_limit": [0.0, float("inf")]}))
    assert get_model(str(file)).num_layers == 2


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)
KEYS = sorted({key for known in KNOWN for key in known.config} | {"quantization_config"})


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.sampled_from(KNOWN),
    st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), JSON_VALUES, max_size=4),
)
def test_a_damaged_config_gives_a_shape_or_our_own_error(
    family: str, known: Any, damage: dict[str, Any]
) -> None:
    config = {**known.config, "model_type": family, **damage}
    config["num_hidden_layers"] = damage.get("num_hidden_layers", 3)
    try:
        shape = shape_from_config(config, "x")
    except ServefitError as error:
        message = str(error)
    else:
        message = ""
        assert shape.num_parameters > 0
        assert 0 <= shape.kv_bytes_per_token < float("inf")
    assert "\n" not in message
    assert len(message) < 1000
