from __future__ import annotations

import json
from dataclasses import replace

import pytest

from servefit import api
from servefit.advise import Terms, get_engine, predicted_problem
from servefit.advise.servable import UnservableError
from servefit.calibration import Calibration
from servefit.memory import Reservation, gpus_needed
from servefit.models import get_model, shape_from_config
from servefit.points import Serving
from tests.cli.conftest import Run, run

__all__ = ["run"]

PRIOR = api.as_calibration("prior:step")
LLAMA = "meta-llama/Llama-2-7b-hf"


def notes(
    model: str = LLAMA,
    *,
    lengths: tuple[float, float] = (250, 390),
    tensor_parallel_size: int = 1,
    engine: str = "vllm",
    budget: int | None = None,
    serving: Serving | None = None,
) -> tuple[str, ...]:
    points = api.points_of(
        PRIOR,
        model=model,
        gpu="H100",
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        batch=1,
        tensor_parallel_size=tensor_parallel_size,
        serving=serving,
    )
    terms = Terms(engine=get_engine(engine), max_num_batched_tokens=budget)
    return predicted_problem(PRIOR, points, (), terms).curve.notes


WHOLE = Serving.of(chunked_prefill=False)


@pytest.mark.parametrize(
    ("asked", "option", "said"),
    [
        (
            {"model": "Qwen/Qwen2.5-7B", "tensor_parallel_size": 8},
            "tensor_parallel_size",
            r"28 query heads and 4 KV heads .* engines refuse: use 1, 2, 4$",
        ),
        ({"tensor_parallel_size": 3}, "tensor_parallel_size", "does not share the 32 query heads"),
        (
            {"serving": Serving.of(pipeline_parallel_size=33)},
            "pipeline_parallel_size",
            "has only 32 layers",
        ),
        (
            {"budget": 249, "serving": WHOLE},
            "max_num_batched_tokens",
            "has 250 tokens: raise it, or chunk prompts",
        ),
        (
            {"model": "facebook/opt-1.3b", "lengths": (2000, 49)},
            "input_tokens",
            r"2,000 \+ 49 = 2,049 tokens: facebook/opt-1.3b has learned positions for 2,048",
        ),
        (
            {"model": "facebook/opt-1.3b", "lengths": (49, 2000)},
            "output_tokens",
            "ask for shorter ones",
        ),
    ],
)
def test_what_no_engine_runs_is_refused(asked: dict[str, object], option: str, said: str) -> None:
    with pytest.raises(UnservableError, match=said) as refused:
        notes(**asked)  # type: ignore[arg-type]
    assert refused.value.option == option


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"model": "Qwen/Qwen2.5-7B", "tensor_parallel_size": 4},
        {"model": "Qwen/Qwen2.5-7B", "tensor_parallel_size": 8, "engine": "llama.cpp"},
        {"model": "deepseek-ai/DeepSeek-V3", "tensor_parallel_size": 16},
        {"serving": Serving.of(pipeline_parallel_size=32)},
        {"budget": 250, "serving": WHOLE},
        {"budget": 64, "serving": Serving.of(chunked_prefill=False, prefix_hit_rate=0.8)},
        {"budget": 64},
        {"model": "facebook/opt-1.3b", "lengths": (2000, 48)},
        {"lengths": (4000, 96)},
        {"model": "Qwen/Qwen2.5-7B", "lengths": (100_000, 500)},
    ],
)
def test_what_engines_run_is_let_be(asked: dict[str, object]) -> None:
    assert notes(**asked) == ()  # type: ignore[arg-type]


def test_a_request_beyond_rotary_positions_is_a_warning() -> None:
    (said,) = notes(lengths=(8000, 500))
    assert said.startswith("a request of 8,000 + 500 = 8,500 tokens exceeds the 4,096 of meta-")


def test_the_limit_is_the_configs() -> None:
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,
        "num_hidden_layers": 4, "num_attention_heads": 8, "torch_dtype": "float16",
    }  # fmt: skip
    assert shape_from_config(config, "own").max_context_tokens is None
    longer = shape_from_config({**config, "max_position_embeddings": 8192}, "own")
    assert (longer.max_context_tokens, longer.learned_positions) == (8192, False)
    opt = get_model("facebook/opt-1.3b")
    assert (opt.max_context_tokens, opt.learned_positions) == (2048, True)


def test_a_calibration_from_before_knows_no_limit() -> None:
    text = replace(PRIOR, models=(get_model(LLAMA),)).to_json()
    before = json.loads(text)
    for name in ("max_context_tokens", "learned_positions"):
        del before["models"][0][name]
    (model,) = Calibration.from_json(json.dumps(before)).models
    assert (model.max_context_tokens, model.learned_positions) == (None, False)


def test_no_number_of_gpus_is_advised_that_engines_refuse() -> None:
    model = get_model("Qwen/Qwen2.5-7B")
    small = Reservation(gpu_memory_bytes=2.4e9, utilization=1.0, weight_bytes=0.0, other_bytes=0.0)
    assert model.weight_bytes / 8 < small.gpu_memory_bytes
    assert gpus_needed(model, 100, small) is None


def test_the_command_line_refuses_and_warns(run: Run) -> None:
    lengths = ("--input-tokens", 8000, "--output-tokens", 500)
    asked = ("advise", "prior:step", "--gpu", "H100", *lengths, "--model")
    refused = run(*asked, "Qwen/Qwen2.5-7B", "--tensor-parallel-size", 8)
    assert refused.status == 2
    assert refused.err.startswith("servefit: tensor_parallel_size = 8: does not share")
    warned = run(*asked, LLAMA)
    assert warned.status == 0
    assert "exceeds the 4,096 of meta-llama/Llama-2-7b-hf's config" in warned.out
