from __future__ import annotations

from dataclasses import replace

import pytest

from servefit.advise import ENGINES, get_engine
from servefit.advise.settings import Ask
from servefit.errors import ServefitError
from servefit.memory import KvMemory
from servefit.models import RecurrentGroup

from .conftest import GIB, GPU, MODEL, make_model

#: 2 x 24 layers x 32 heads x 64 x 2 bytes.
TOKEN_BYTES = 196_608


def ask(engine: str, **given: object) -> Ask:
    memory: KvMemory = ENGINES[engine].memory(MODEL, GPU, 130, other_bytes=GIB)
    return Ask(batch_cap=96, context_tokens=130, memory=memory, **given)


def test_vllm_caps_the_batch_and_the_kv_cache_which_the_cap_alone_would_not_shrink() -> None:
    settings = ENGINES["vllm"].write(ask("vllm"))
    # 130 tokens are 9 blocks of 16; one block more is vLLM's own.
    kv_bytes = (96 * 9 + 1) * 16 * TOKEN_BYTES
    assert settings.text == f"--max-num-seqs 96 --kv-cache-memory-bytes {kv_bytes}"
    assert any("--num-gpu-blocks-override 865" in note for note in settings.notes)
    assert any("--max-model-len" in note and "13824" in note for note in settings.notes)


def test_vllm_counts_no_blocks_where_layers_have_windows() -> None:
    memory = ENGINES["vllm"].memory(make_model(window=64), GPU, 130)
    settings = ENGINES["vllm"].write(Ask(batch_cap=96, context_tokens=130, memory=memory))
    assert f"--kv-cache-memory-bytes {(96 * 4 + 1) * 16 * TOKEN_BYTES}" in settings.text
    assert not any("--num-gpu-blocks-override" in note for note in settings.notes)


def test_vllm_counts_no_blocks_where_layers_have_a_recurrent_state() -> None:
    state = RecurrentGroup(4, "mamba", conv_numbers=100, state_numbers=10_000)
    memory = ENGINES["vllm"].memory(replace(make_model(), recurrent=(state,)), GPU, 130)
    settings = ENGINES["vllm"].write(Ask(batch_cap=96, context_tokens=130, memory=memory))
    assert not any("--num-gpu-blocks-override" in note for note in settings.notes)
    assert any("recurrent state" in note for note in settings.notes)


def test_vllm_without_a_model_can_only_cap_the_batch() -> None:
    settings = ENGINES["vllm"].write(Ask(batch_cap=96, context_tokens=130))
    assert settings.text == "--max-num-seqs 96"


def test_sglang_counts_tokens_and_names_the_share_that_does_the_same() -> None:
    settings = ENGINES["sglang"].write(ask("sglang", tensor_parallel_size=2))
    assert settings.text == (
        "--max-running-requests 96 --max-total-tokens 12480 --tensor-parallel-size 2"
    )
    used = MODEL.weight_bytes + 12480 * TOKEN_BYTES
    (share,) = [n.split()[1] for n in settings.notes if n.startswith("--mem-fraction-static")]
    assert 0 <= float(share) - used / (64 * GIB) < 0.001


def test_tensorrt_llm_writes_yaml_with_whole_blocks() -> None:
    settings = ENGINES["tensorrt-llm"].write(ask("tensorrt-llm", kv_cache_dtype="fp8"))
    assert settings.text.splitlines() == [
        "max_batch_size: 96",
        "kv_cache_config:",
        "  max_tokens: 15360",
        "  dtype: fp8",
    ]


def test_llama_cpp_takes_the_context_of_all_slots_together() -> None:
    settings = ENGINES["llama.cpp"].write(ask("llama.cpp", tensor_parallel_size=2))
    assert settings.text == "--parallel 96 --ctx-size 24576"
    assert any("splits layers" in note for note in settings.notes)
    assert ENGINES["llama.cpp"].max_batch == 256


def test_kv_dtypes_are_spelt_as_the_engine_does() -> None:
    for engine in ("vllm", "sglang"):
        text = ENGINES[engine].write(ask(engine, kv_cache_dtype="fp8")).text
        assert text.endswith("--kv-cache-dtype fp8_e4m3")
        assert "--kv-cache-dtype" not in ENGINES[engine].write(ask(engine)).text


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(ServefitError, match=r"vllm, sglang, tensorrt-llm, llama\.cpp"):
        get_engine("triton")
