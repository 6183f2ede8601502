"""Parameter counts, exact, against those that the publishers report."""

from __future__ import annotations

import pytest

from servefit.models import get_model, list_models, shape_from_config

from .known import KNOWN, Known

PUBLISHED = {
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "facebook/opt-1.3b": 1_315_758_080,
    "facebook/opt-2.7b": 2_651_596_800,
    "facebook/opt-6.7b": 6_658_473_984,
    "facebook/opt-13b": 12_853_473_280,
    "facebook/opt-30b": 29_974_540_288,
    "facebook/opt-66b": 65_719_701_504,
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Meta-Llama-3-8B": 8_030_261_248,
    "meta-llama/Meta-Llama-3-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mistral-7B-Instruct-v0.2": 7_241_732_096,
    "mistralai/Mistral-7B-v0.3": 7_248_023_552,
    "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "ibm-granite/granite-8b-code-base": 8_054_910_976,
    "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2-1.5B": 1_543_714_304,
    "Qwen/Qwen2-7B": 7_615_616_512,
    "Qwen/Qwen2-72B": 72_706_203_648,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen2.5-72B": 72_706_203_648,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "mistralai/Mixtral-8x22B-v0.1": 140_620_634_112,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "microsoft/phi-4": 14_659_507_200,
    "deepseek-ai/DeepSeek-V3": 671_026_419_200,
}


def test_every_catalogue_model_has_its_published_number_of_parameters() -> None:
    counted = {entry.name: entry.shape().num_parameters for entry in list_models()}
    assert counted == PUBLISHED


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_config_gives_the_published_number_of_parameters(known: Known) -> None:
    assert shape_from_config(known.config, known.name).num_parameters == known.num_parameters


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_a_config_gives_the_kv_bytes_of_a_token(known: Known) -> None:
    shape = shape_from_config(known.config, known.name)
    assert shape.kv_bytes_per_token == known.kv_bytes_per_token


def test_mixtures_tell_their_active_parameters() -> None:
    mixtral = get_model("Mixtral-8x7B-v0.1")
    idle_experts = 6 * 32 * 3 * 4096 * 14336
    assert mixtral.num_active_parameters == mixtral.num_parameters - idle_experts
    assert mixtral.num_active_parameters == 12_879_925_248


def test_the_embedding_costs_no_flops_but_the_lm_head_does() -> None:
    untied, tied = get_model("Qwen3-8B"), get_model("Qwen3-0.6B")
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    assert untied.num_matmul_parameters == untied.num_parameters - 151936 * 4096 - norms
    assert tied.tied_embeddings
    assert tied.num_matmul_parameters == tied.num_parameters - 28 * (2 * 1024 + 256) - 1024


def test_opt_350m_projects_its_embeddings() -> None:
    shape = get_model("opt-350m")
    assert shape.embedding_parameters == 50272 * 512
    assert shape.parameters.other_matrices == 2 * 512 * 1024
    assert shape.parameters.lookups == 2050 * 1024


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("opt-1.3b", 4.0),
        ("Mistral-7B-v0.1", 1.5 * 3.5),
        ("granite-8b-code", 1.5 * 3.5),
        ("Qwen2.5-32B", 1.5 * 5.4),
        ("Mixtral-8x7B-v0.1", 2 * 1.5 * 3.5),
    ],
)
def test_the_ffn_ratio_counts_a_third_matrix_and_the_active_experts(
    name: str, ratio: float
) -> None:
    assert get_model(name).ffn_ratio == pytest.approx(ratio, rel=1e-12)
