"""Static batches on an engine whose scheduler is watched."""

from __future__ import annotations

import math
import time

import pytest

from servefit.errors import ServefitError
from servefit.offline import engine as engine_module
from servefit.offline.engine import EngineFailedError, OutOfTimeError, VllmEngine
from servefit.offline.steps import StepShape
from tests.offline.fake_vllm import FakeLLM


def engine_on(llm: FakeLLM) -> VllmEngine:
    return VllmEngine(llm, {"kv_capacity_tokens": 1000}, vocab_size=50, sampling=lambda n: n)


def run(llm: FakeLLM, batch: int, input_tokens: int, output_tokens: int, seed: int = 1):
    return engine_on(llm).run(batch, input_tokens, output_tokens, seed=seed, give_up_s=math.inf)


def test_a_batch_is_one_prefill_step_and_a_decode_step_for_every_further_token():
    result = run(FakeLLM(), 3, 10, 4)
    assert [step.shape for step in result.steps] == [
        StepShape(prefill_tokens=30, prefill_requests=3),
        StepShape(decode_requests=3, decode_context_tokens=30),
        StepShape(decode_requests=3, decode_context_tokens=33),
        StepShape(decode_requests=3, decode_context_tokens=36),
    ]
    assert result.output_tokens == (4, 4, 4)
    assert (result.peak_requests, result.preemptions) == (3, 0)


def test_prompts_over_the_budget_are_split_and_the_steps_between_are_mixed():
    result = run(FakeLLM(budget=15), 2, 10, 3)
    assert [step.shape.phase for step in result.steps] == ["context", "mixed", "decode", "decode"]
    assert [step.shape.prefill_kv_tokens for step in result.steps] == [0, 5, 0, 0]


def test_ttft_and_e2e_are_those_of_the_steps():
    result = run(FakeLLM(pause=lambda tokens: time.sleep(0.002 * tokens)), 2, 5, 3)
    assert result.steps[0].time_s == pytest.approx(0.020, abs=0.01)
    assert result.ttft_s == pytest.approx(result.steps[0].time_s, abs=2e-3)
    assert result.e2e_s == pytest.approx(sum(s.time_s for s in result.steps), abs=5e-3)


def test_prompts_are_random_and_follow_the_seed():
    first, again, other = FakeLLM(), FakeLLM(), FakeLLM()
    run(first, 2, 8, 1, seed=5)
    run(again, 2, 8, 1, seed=5)
    run(other, 2, 8, 1, seed=6)
    assert first.prompts == again.prompts != other.prompts
    assert all(0 <= token < 50 for prompt in first.prompts for token in prompt)


def test_a_batch_past_its_time_is_aborted_and_the_next_one_runs():
    llm = FakeLLM(pause=lambda tokens: time.sleep(0.002))
    engine = engine_on(llm)
    with pytest.raises(OutOfTimeError):
        engine.run(2, 5, 100, seed=0, give_up_s=time.perf_counter() + 0.01)
    assert len(llm.aborted) == 2
    assert engine.run(2, 5, 3, seed=0, give_up_s=math.inf).output_tokens == (3, 3)


def test_an_engine_that_fails_is_named_with_its_own_words():
    def fail(tokens: int) -> None:
        raise RuntimeError("out of\n memory")

    with pytest.raises(EngineFailedError, match="vLLM failed in a step: out of memory"):
        run(FakeLLM(pause=fail), 1, 1, 1)


def test_without_vllm_the_error_names_the_remedy(monkeypatch):
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ServefitError, match=r"install servefit into vLLM's environment"):
        VllmEngine.load("somewhere", gpu=None, arguments={})
