"""``servefit models`` and ``servefit hardware``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Run


def test_models_lists_the_catalogue(run: Run) -> None:
    assert "Qwen/Qwen3-32B" in run("models").out
    listed = run("models", "--json").json
    names = {model["name"] for model in listed}
    assert {"facebook/opt-125m", "mistralai/Mixtral-8x7B-v0.1"} <= names


def test_one_model_is_shown_with_everything_derived(run: Run) -> None:
    shown = run("models", "llama-2-7b-hf").out
    for part in ("6,738,415,616", "512 KiB a token", "huggingface.co", "r_ff 4.031"):
        assert part in shown
    model = run("models", "Llama-2-7b-hf", "--json").json
    assert model["kv_bytes_per_token"] == 524_288
    assert model["weight_bytes"] == 2 * 6_738_415_616
    assert model["attention"][0]["kv_bytes_per_token"] == 524_288


def test_formats_and_parallelism_can_be_asked_for(run: Run) -> None:
    options = ("--kv-cache-dtype", "fp8", "--dtype", "fp8", "--tensor-parallel-size", 4, "--json")
    model = run("models", "Llama-3.1-8B", *options).json
    assert model["kv_bytes_per_token_on_rank"] == 131_072 / 2 / 4
    assert model["weight_dtype"] == "fp8"


def test_a_config_by_path(run: Run, tmp_path: Path) -> None:
    config = {
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 64,
        "num_local_experts": 8,
        "sliding_window": 16,
        "vocab_size": 1000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = run("models", tmp_path).out
    for part in ("window 16", "beyond the windows", "8 experts of 64", "names no dtype"):
        assert part in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "nothing-like-it"), "is not in the catalogue"),
        (("models", "absent/config.json"), "cannot be read"),
        (("models", "Qwen3-8B", "--dtype", "fp7"), "unknown dtype"),
        (("hardware", "A100"), "say A100-40GB or A100-80GB"),
        (("hardware", "name=x,flops=0"), "must be positive"),
        (("hardware", "--file", "absent.toml"), "cannot be read"),
    ],
)
def test_errors_are_one_line_and_exit_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    outcome = run(*arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not outcome.out


def test_hardware_lists_the_catalogue_and_own_files(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[accelerator]]\nname = "Mine"\npeak_flops_per_s = { float16 = 1e14 }\n')
    assert "MI300X" in run("hardware").out
    assert "Mine" in run("hardware", "--file", file).out
    assert run("hardware", "--file", file, "--json").json[0]["name"] == "Mine"
    assert run("hardware", "mine", "--file", file, "--json").json["memory_bytes"] is None


def test_one_accelerator_is_shown_with_its_sources(run: Run) -> None:
    shown = run("hardware", "NVIDIA L40S").out
    assert "362.1 TFLOP/s" in shown
    assert "NVIDIA L40S data sheet" in shown
    described = run("hardware", "H100-64GB", "--json").json
    assert described["ridge_flops_per_byte"] == pytest.approx(610.5, abs=0.1)
    assert "2607.29575" in described["sources"]["memory_bandwidth_bytes_per_s"]
