"""Models by name and by path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.models import get_model, list_models, shape_from_config

from .test_weights import SMALL


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("Qwen3-32B", "Qwen/Qwen3-32B"),
        ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("facebook/opt-1.3b", "facebook/opt-1.3b"),
        ("OPT-1.3B", "facebook/opt-1.3b"),
        ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
        ("llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-chat-hf"),
        ("Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("ibm-granite/granite-8b-code-base", "ibm-granite/granite-8b-code-base"),
        ("Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct"),
        (" Qwen3-0.6B ", "Qwen/Qwen3-0.6B"),
    ],
)
def test_names_match_without_case_and_organisation(name: str, full: str) -> None:
    assert get_model(name).name == full


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Qwen3-32B-FP8", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B"),
        ("TheBloke/Llama-2-7B-GPTQ", "meta-llama/Llama-2-7b"),
        ("opt-1.4b", "facebook/opt-1.3b"),
    ],
)
def test_other_names_are_refused_with_the_nearest_and_the_remedy(name: str, near: str) -> None:
    with pytest.raises(ServefitError, match=rf"{name}.*did you mean .*{near}.*config\.json"):
        get_model(name)


def test_a_folder_without_a_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(ServefitError, match=r"holds no config\.json"):
        get_model(tmp_path)


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(ServefitError, match="'zzz' is not in the catalogue: `servefit models`"):
        get_model("zzz")


def test_the_same_model_is_the_same_key_however_it_is_spelt() -> None:
    assert {get_model("qwen3-8b"): 1} == {get_model("Qwen/Qwen3-8B"): 1}


def test_names_lead_to_one_entry_each() -> None:
    names = [name.lower() for entry in list_models() for name in entry.names]
    assert len(names) == len(set(names))


def test_every_entry_has_a_source_that_names_a_repository() -> None:
    for entry in list_models():
        assert entry.source.startswith("https://huggingface.co/")
        assert entry.shape().source == entry.source


def test_a_config_is_read_from_its_file_and_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    by_folder, by_file = get_model(folder), get_model(str(folder / "config.json"))
    assert by_folder.name == by_file.name == "my-model"
    assert by_folder.num_parameters == by_file.num_parameters
    assert by_folder.source == str(folder)


def test_a_file_with_a_name_of_its_own_gives_the_model_that_name(tmp_path: Path) -> None:
    file = tmp_path / "org--mine_config.json"
    file.write_text(json.dumps(SMALL))
    assert get_model(file).name == "org--mine"


def test_modelopt_quantisation_is_found_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    quantisation = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantisation))
    shape = get_model(tmp_path)
    assert (shape.weight_dtype, shape.kv_cache_dtype) == ("fp8", "fp8")


def test_what_is_taken_for_granted_is_noted() -> None:
    assert get_model("opt-125m").notes == ()
    silent = shape_from_config({k: v for k, v in SMALL.items() if k != "torch_dtype"}, "x")
    assert "names no dtype" in silent.notes[0]
    nested = shape_from_config({"model_type": "any", "text_config": SMALL}, "x")
    assert "only its language model" in nested.notes[-1]
    assert nested.weight_dtype == "float16"
