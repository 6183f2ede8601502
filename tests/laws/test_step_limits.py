from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.hardware import Hardware
from servefit.laws import get_law
from servefit.laws.step.physics import step_terms
from servefit.laws.step.running import flatten
from servefit.laws.step.schedule import run_schedule
from servefit.laws.step.waves import waves
from servefit.laws.step.work import step_cost
from servefit.points import Points, Serving

from .step_models import (
    BANDWIDTH,
    DENSE,
    FLOPS,
    GPU,
    IDEAL,
    LATENT,
    LINK,
    MIXTURE,
    RECURRENT,
    TYPICAL,
    WINDOWED,
    calibration,
    seconds,
    steps,
)

KINDS = [DENSE, WINDOWED, LATENT, MIXTURE, RECURRENT]
STEP = get_law("step")


def test_one_request_takes_the_reading_of_the_weights() -> None:
    weights_s = float(DENSE.streamed_weight_bytes(1)) / BANDWIDTH
    assert seconds(steps(decode=1, context=1)) == pytest.approx(weights_s, rel=1e-3)
    points = Points.of(DENSE, GPU, input_tokens=1, output_tokens=10, batch=1)
    assert STEP.predict(calibration(IDEAL), points).tpot_s == pytest.approx(weights_s, rel=1e-3)


def test_a_long_context_takes_the_reading_of_the_cache() -> None:
    context = 1e8
    kv_s = context * DENSE.kv_bytes_per_token / BANDWIDTH
    assert seconds(steps(decode=1, context=context)) == pytest.approx(kv_s, rel=1e-3)
    # A share of the bandwidth takes so much longer.
    slower = {**IDEAL, "kv_bandwidth_efficiency": 0.5}
    assert seconds(steps(decode=1, context=context), theta=slower) == pytest.approx(
        2 * kv_s, rel=1e-3
    )


def test_a_huge_prefill_is_bound_by_compute_at_its_efficiency() -> None:
    n = 1e6
    head = DENSE.embedding_parameters
    flops = 2 * (DENSE.num_matmul_parameters - head) * n + 2 * head
    flops += float(DENSE.prefill_attention_flops(n))
    theta = {**IDEAL, "prefill_efficiency": 0.6}
    step_s = seconds(steps(prompt_tokens=n, prompts=1), theta=theta)
    assert step_s == pytest.approx(flops / (0.6 * FLOPS), rel=1e-3)


def test_a_huge_batch_of_short_contexts_is_bound_by_compute() -> None:
    batch = 1e6
    flops = 2 * DENSE.num_matmul_parameters * batch
    theta = {**IDEAL, "decode_efficiency": 0.3}
    assert seconds(steps(decode=batch), theta=theta) == pytest.approx(
        flops / (0.3 * FLOPS), rel=1e-3
    )


@given(
    st.sampled_from([2, 4, 8]),
    st.floats(1, 500),
    st.floats(0, 5000),
    st.floats(1, 4000),
    st.sampled_from([DENSE, WINDOWED, MIXTURE, RECURRENT]),
)
def test_ranks_with_endless_links_scale_perfectly(
    ranks: int, decode: float, context: float, prompt: float, model: object
) -> None:
    linked = replace(GPU, link_bandwidth_bytes_per_s=math.inf)
    step = steps(decode=decode, context=context, prompt_tokens=prompt, prompts=1)
    one = seconds(step, model, IDEAL, linked)
    assert seconds(step, model, IDEAL, linked, ranks) == pytest.approx(one / ranks)


def test_ranks_pay_for_what_they_send() -> None:
    step = steps(decode=10, context=100)
    theta = {**IDEAL, "all_reduce_s": 1e-5}
    cost = step_cost(DENSE, GPU, 4, step)
    sent_s = 2 * 32 * (2 * 3 / 4) * 10 * 4096 * 2 / LINK
    assert step_terms(theta, cost)["communication"] == pytest.approx(64e-5 + sent_s)
    assert step_terms(theta, step_cost(DENSE, GPU, 1, step))["communication"] == 0


@given(st.floats(1e-3, 1e3), st.integers(1, 4), st.floats(0, 300), st.floats(0, 4000))
def test_the_law_is_sound_in_its_dimensions(
    scale: float, ranks: int, decode: float, prompt: float
) -> None:
    """In another unit of time all rates and overheads change, and so does each term: no hidden
    constant has a dimension."""
    slow = Hardware("slow", {"float16": FLOPS / scale}, BANDWIDTH / scale, 80e9, LINK / scale)
    stretched = {k: v * scale if k.endswith("_s") else v for k, v in TYPICAL.items()}
    step = steps(decode=decode, context=700, prompt_tokens=prompt, prompts=1)
    here = step_terms(TYPICAL, step_cost(DENSE, GPU, ranks, step))
    there = step_terms(stretched, step_cost(DENSE, slow, ranks, step))
    for name, value in here.items():
        assert there[name] == pytest.approx(scale * value), name


COUNTS = {
    "decode": st.floats(0, 2000),
    "context": st.floats(0, 50_000),
    "prompt_tokens": st.floats(1, 20_000),
    "prompts": st.floats(1, 1),
    "cached": st.floats(0, 20_000),
    "drafts": st.floats(0, 8),
}


@given(
    st.fixed_dictionaries(COUNTS),
    st.sampled_from(["decode", "context", "prompt_tokens", "cached", "drafts"]),
    st.floats(1.01, 3),
    st.sampled_from(KINDS),
    st.sampled_from([1, 2, 4]),
)
def test_more_work_never_takes_less_time(
    counts: dict[str, float], name: str, factor: float, model: object, ranks: int
) -> None:
    less = seconds(steps(**counts), model, TYPICAL, GPU, ranks)
    counts[name] *= factor
    more = seconds(steps(**counts), model, TYPICAL, GPU, ranks)
    assert more >= less * (1 - 1e-9)


@given(
    st.floats(1, 4000),
    st.floats(2, 2000),
    st.floats(1, 600),
    st.sampled_from(KINDS),
    st.sampled_from(["chunked", "whole", "static"]),
)
def test_a_run_is_the_sum_of_its_terms_and_grows_with_the_batch(
    prompt: float, output: float, batch: float, model: object, mode: str
) -> None:
    serving = Serving.of(
        static=mode == "static",
        chunked_prefill=mode == "chunked",
        kv_capacity_tokens=1e12,
        max_num_batched_tokens=20_000,
    )
    points = Points.of(
        model,
        GPU,
        input_tokens=prompt,
        output_tokens=output,
        batch=[batch, 1.5 * batch],
        serving=serving,
    )
    answer = STEP.predict(calibration(TYPICAL), points)
    assert np.sum(list(answer.terms_s.values()), axis=0) == pytest.approx(answer.e2e_s)
    assert all((term >= 0).all() for term in answer.terms_s.values())
    assert answer.e2e_s == pytest.approx(answer.prefill_s + answer.decode_s)
    assert answer.e2e_s[1] > answer.e2e_s[0]
    assert (answer.tpot_s * (points.output_tokens - 1)) == pytest.approx(answer.decode_s)


@pytest.mark.parametrize("chunked", [True, False])
@given(st.floats(1, 1000), st.floats(50, 1000), st.floats(4, 300), st.floats(1000, 16_000))
def test_while_a_request_lives_each_running_one_is_prefilled_once(
    chunked: bool, prompt: float, output: float, cap: float, budget: float
) -> None:
    serving = Serving.of(
        chunked_prefill=chunked,
        max_num_batched_tokens=budget,
        kv_capacity_tokens=1e12,
        batch_is_cap=True,
    )
    points = Points.of(
        DENSE, GPU, input_tokens=[prompt], output_tokens=output, batch=cap, serving=serving
    )
    schedule = run_schedule(*flatten(points))
    parts = (schedule.first, schedule.rest)
    prefilled = sum(float(np.sum(p.count * p.prefill_tokens)) for p in parts)
    assert prefilled == pytest.approx(float(schedule.batch[0]) * prompt)
    if chunked:
        in_a_step = np.concatenate([p.prefill_tokens + p.decode_requests for p in parts])
        assert in_a_step.max() <= budget * (1 + 1e-9) or schedule.batch[0] == 1


BATCHES = {
    "batch": st.integers(1, 40),
    "input_tokens": st.integers(1, 500),
    "output_tokens": st.integers(1, 300),
    "capacity_tokens": st.integers(50, 8000),
    "budget": st.integers(1, 2000),
}


@given(st.fixed_dictionaries(BATCHES))
def test_waves_serve_every_request_and_lose_no_token(sizes: dict[str, int]) -> None:
    simulated = waves(**sizes)
    admissions = sum(w.count * w.prompts for w in simulated)
    decoded = sum(w.count * w.decoding for w in simulated)
    assert admissions >= sizes["batch"]
    # Each admission yields a token, each decoding request one a step; none twice, none lost.
    assert admissions + decoded == sizes["batch"] * sizes["output_tokens"]
    prefilled = sum(w.count * w.prefill_tokens for w in simulated)
    assert prefilled >= sizes["batch"] * sizes["input_tokens"]
    for wave in simulated:
        held = wave.context_tokens + wave.decoding * (wave.count - 1) / 2
        assert held <= sizes["capacity_tokens"] or wave.decoding <= 1
        assert wave.prefill_tokens <= sizes["budget"] or wave.prompts == 1


def static(batch: float, capacity: float, **lengths: float) -> Points:
    serving = Serving.of(static=True, kv_capacity_tokens=capacity, max_num_batched_tokens=5000)
    return Points.of(DENSE, GPU, batch=[batch], serving=serving, **lengths)


@given(st.integers(1, 60), st.integers(1, 800), st.integers(2, 400))
def test_a_batch_that_just_overflows_costs_hardly_more_than_one_that_fits(
    batch: int, prompt: int, output: int
) -> None:
    law = calibration(TYPICAL)
    lengths = {"input_tokens": prompt, "output_tokens": output}
    peak = batch * (prompt + output)
    at_once = STEP.predict(law, static(batch, peak, **lengths))
    simulated = waves(batch, prompt, output, 1.2 * peak, 5000)
    decodes = [w for w in simulated if w.decoding]
    # With room to spare the simulation is the closed form: all prefilled, then OL - 1 steps.
    assert sum(w.prompts for w in simulated) == batch
    assert [(w.count, w.decoding) for w in decodes] == [(output - 1, batch)]
    assert decodes[0].context_tokens / batch == prompt + output / 2
    crowded = STEP.predict(law, static(batch, 0.999 * peak, **lengths))
    assert crowded.e2e_s >= at_once.e2e_s * (1 - 1e-9)


def test_half_the_cache_takes_about_two_waves() -> None:
    lengths = {"input_tokens": 500, "output_tokens": 500}
    law = calibration(TYPICAL)
    half = STEP.predict(law, static(32, 1e12, **lengths))
    crowded = STEP.predict(law, static(64, 32 * 1000 / 0.99, **lengths))
    assert 1.5 * float(half.e2e_s[0]) < float(crowded.e2e_s[0]) < 2.2 * float(half.e2e_s[0])
