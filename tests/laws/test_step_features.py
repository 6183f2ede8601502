"""Each part that published data cannot calibrate, pinned to its formula."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from servefit.calibration import Calibration, Discrepancy
from servefit.errors import ServefitError
from servefit.laws import Observations, cautions, get_law
from servefit.laws.features import FORMULAS, features_of, formulas_of_rows
from servefit.laws.step.running import batch_limits, flatten, tokens_per_step
from servefit.laws.step.why import why
from servefit.laws.step.work import mean_reach, step_cost
from servefit.points import Points, Serving
from servefit.workload import Workload

from .conftest import slim_calibration
from .step_models import (
    BANDWIDTH,
    DENSE,
    FLOPS,
    GPU,
    IDEAL,
    LATENT,
    MIXTURE,
    RECURRENT,
    TYPICAL,
    WINDOWED,
    calibration,
    seconds,
    steps,
)

STEP = get_law("step")
LAW = calibration(TYPICAL)


def point(model: object = DENSE, batch: float = 16, **serving: object) -> Points:
    return Points.of(
        model,
        GPU,
        input_tokens=600,
        output_tokens=300,
        batch=batch,
        serving=Serving.of(**serving) if serving else None,
    )


# Mixture of experts.


@pytest.mark.parametrize(("tokens", "experts"), [(1, 4), (2, 7.75), (1e6, 64)])
def test_a_mixture_reads_the_distinct_experts_that_its_tokens_meet(
    tokens: float, experts: float
) -> None:
    # E (1 - (1 - k/E)^n): 64 (1 - (60/64)^2) = 7.75.
    shared = MIXTURE.weight_bytes_by_part.total - MIXTURE.weight_bytes_by_part.experts
    expected = shared + MIXTURE.weight_bytes_by_part.experts * experts / 64
    cost = step_cost(MIXTURE, GPU, 1, steps(decode=tokens))
    assert cost.weights_s * BANDWIDTH == pytest.approx(expected, rel=1e-6)


def test_a_mixture_computes_the_experts_of_each_token() -> None:
    active = 32 * 3 * 1024 * 4096 * 4 + MIXTURE.parameters.attention + 32_000 * 4096
    cost = step_cost(MIXTURE, GPU, 1, steps(decode=10))
    assert cost.decode_flops_s * FLOPS == pytest.approx(2 * active * 10)


def test_drafted_tokens_meet_experts_too() -> None:
    drafted = step_cost(MIXTURE, GPU, 1, steps(decode=4, drafts=3))
    assert drafted.weights_s == step_cost(MIXTURE, GPU, 1, steps(decode=16)).weights_s


# Multi-head latent attention.


def test_a_latent_is_read_whole_on_every_rank() -> None:
    for ranks in (1, 8):
        cost = step_cost(LATENT, GPU, ranks, steps(decode=3, context=1000))
        assert cost.kv_s * BANDWIDTH == pytest.approx(3 * 1000 * 32 * 576 * 2)


def test_decoding_attends_on_the_latent_and_prompts_on_heads() -> None:
    decode = step_cost(LATENT, GPU, 1, steps(decode=3, context=1000))
    assert decode.kv_flops_s * FLOPS == pytest.approx(3 * 1000 * 32 * 2 * 64 * (576 + 512))
    prompt = step_cost(LATENT, GPU, 1, steps(prompt_tokens=1000, prompts=1))
    pairs = 1000 * 1001 / 2
    assert prompt.attention_flops_s * FLOPS == pytest.approx(32 * 2 * 64 * (192 + 128) * pairs)


# Sliding windows.


@pytest.mark.parametrize(("prompt", "output"), [(10, 500), (700, 900), (5000, 64), (999, 2)])
def test_windowed_layers_read_no_more_than_their_window(prompt: int, output: int) -> None:
    """Of a whole decode: sum over j of min(IL + j, w), the formula of Eq. 12 on these layers."""
    windowed, full = WINDOWED.attention
    contexts = prompt + np.arange(1, output + 1)
    mean, sd = np.array([contexts.mean()]), np.array([output / math.sqrt(12)])
    exact = np.minimum(contexts, 1000).mean()
    assert mean_reach(windowed, mean, sd) == pytest.approx(exact, rel=2e-3)
    assert mean_reach(full, mean, sd) == mean
    cost = step_cost(
        WINDOWED, GPU, 1, steps(decode=5, context=float(mean[0]), context_sd=float(sd[0]))
    )
    read = 5 * 16 * (2 * 64 * 64) * 2 * (exact + contexts.mean())
    assert cost.kv_s * BANDWIDTH == pytest.approx(read, rel=2e-3)


# Recurrent layers.


def test_a_recurrent_state_is_read_and_written_once_a_token() -> None:
    cost = step_cost(RECURRENT, GPU, 1, steps(decode=7, context=0))
    assert cost.kv_s * BANDWIDTH == pytest.approx(7 * 2 * 28 * 1_010_000 * 2)


# Prompts of mixed lengths.


def test_attention_over_mixed_prompts_grows_with_their_squares() -> None:
    lengths = np.array([100.0, 300.0, 2000.0])
    one_by_one = sum(
        float(step_cost(DENSE, GPU, 1, steps(prompt_tokens=n, prompts=1)).attention_flops_s[0])
        for n in lengths
    )
    spread = float(np.mean(lengths**2) / np.mean(lengths) ** 2)
    mixed = steps(prompt_tokens=float(lengths.sum()), prompts=3, prompt_spread=spread)
    assert step_cost(DENSE, GPU, 1, mixed).attention_flops_s == pytest.approx(one_by_one)


def test_mixed_lengths_read_more_cache_than_their_means() -> None:
    mixed = Workload.from_moments(600, 300, cv_input=0.5, cv_output=1.5)
    plain, longer = point(), point().with_workload(mixed)
    a, b = STEP.predict(LAW, plain), STEP.predict(LAW, longer)
    assert b.terms_s["KV cache"] / a.terms_s["KV cache"] == pytest.approx(
        mixed.context_ratio, rel=1e-6
    )
    assert b.total_tokens_per_s < a.total_tokens_per_s
    even = point().with_workload(Workload.from_moments(600, 300))
    assert STEP.predict(LAW, even).e2e_s == pytest.approx(a.e2e_s)


# Prefix caching.


def test_hits_are_read_and_not_computed() -> None:
    miss, hit = (point(prefix_hit_rate=h, chunked_prefill=False) for h in (0.0, 0.75))
    a, b = STEP.predict(LAW, miss), STEP.predict(LAW, hit)
    assert b.terms_s["compute"] < 0.6 * a.terms_s["compute"]
    assert b.ttft_s < a.ttft_s
    # 150 new tokens after 450: causal pairs (600 x 601 - 450 x 451) / 2.
    cost = step_cost(DENSE, GPU, 1, steps(prompt_tokens=150, prompts=1, cached=450))
    pairs = (600 * 601 - 450 * 451) / 2
    assert cost.attention_flops_s * FLOPS == pytest.approx(32 * 2 * 64 * 128 * pairs)
    assert cost.kv_s * BANDWIDTH == pytest.approx(450 * DENSE.kv_bytes_per_token)


# Speculative decoding.


def test_tokens_of_a_verify_step_follow_leviathan() -> None:
    assert tokens_per_step(0, 0.9) == 1
    assert tokens_per_step(4, 0.0) == 1
    assert tokens_per_step(4, 1.0) == 5
    assert tokens_per_step(3, 0.5) == pytest.approx(1 + 0.5 + 0.25 + 0.125)


def test_speculation_saves_steps_and_pays_for_its_drafts() -> None:
    serving = {"static": True, "kv_capacity_tokens": 1e9, "draft_tokens": 3}
    plain = STEP.predict(LAW, point(batch=1, static=True, kv_capacity_tokens=1e9))
    lucky = STEP.predict(LAW, point(batch=1, **serving, acceptance_rate=0.8))
    tau = tokens_per_step(3, 0.8)
    context = 600 + 300 / 2
    verify_s = seconds(steps(decode=1, context=context, drafts=3), theta=TYPICAL)
    assert lucky.decode_s == pytest.approx(299 / tau * verify_s)
    assert lucky.decode_s < plain.decode_s
    unlucky = STEP.predict(LAW, point(batch=1, **serving, acceptance_rate=0.0))
    assert unlucky.decode_s > plain.decode_s
    drafted = STEP.predict(LAW, point(batch=1, **serving, acceptance_rate=0.8, draft_cost=0.1))
    plain_step_s = seconds(steps(decode=1, context=context), theta=TYPICAL)
    extra_s = drafted.decode_s - lucky.decode_s
    assert extra_s == pytest.approx(299 / tau * 0.3 * plain_step_s)


@pytest.mark.parametrize("output_tokens", [2, 3, 9])
def test_a_second_token_takes_a_step_however_many_drafts_are_accepted(output_tokens: int) -> None:
    serving = {"static": True, "kv_capacity_tokens": 1e9, "draft_tokens": 8}
    context = 600 + output_tokens / 2
    answered = replace(
        point(batch=1, **serving, acceptance_rate=1.0), output_tokens=np.array(float(output_tokens))
    )
    answer = STEP.predict(LAW, answered)
    verify_s = seconds(steps(decode=1, context=context, drafts=8), theta=TYPICAL)
    assert answer.decode_s == pytest.approx(verify_s)


# Pipeline parallelism.


def test_stages_share_the_batch_and_the_cache() -> None:
    capacity = [
        float(flatten(point(pipeline_parallel_size=s))[1].kv_capacity_tokens[0]) for s in (1, 4)
    ]
    assert capacity[1] > 4 * capacity[0]
    four = STEP.predict(LAW, point(batch=64, chunked_prefill=False, pipeline_parallel_size=4))
    of_one = seconds(steps(decode=16, context=600 + 301 / 2), theta=TYPICAL)
    prompt_s = seconds(steps(prompt_tokens=600, prompts=1), theta=TYPICAL)
    assert four.decode_s == pytest.approx(299 * of_one + 15 * prompt_s)
    alone = STEP.predict(LAW, point(batch=1))
    staged = STEP.predict(LAW, point(batch=1, pipeline_parallel_size=4))
    assert staged.e2e_s == pytest.approx(alone.e2e_s)


# What runs under a cap.


def limits(**serving: object) -> dict[str, float]:
    found = batch_limits(*flatten(point(batch=512, batch_is_cap=True, **serving)))
    return {name: float(value[0]) for name, value in found.items()}


def test_the_batch_is_what_the_least_of_three_limits_allows() -> None:
    # Mean context 600 + 301/2; 1 + 600/300 tokens a step and request.
    found = limits(kv_capacity_tokens=75_050, max_num_batched_tokens=450)
    assert found == {"max_num_seqs": 512, "KV capacity": 100, "token budget": 150}
    answer = STEP.predict(
        LAW,
        point(batch=512, batch_is_cap=True, kv_capacity_tokens=75_050, max_num_batched_tokens=450),
    )
    assert answer.batch == 100
    same = STEP.predict(LAW, point(batch=100, max_num_batched_tokens=450))
    assert answer.total_tokens_per_s == pytest.approx(same.total_tokens_per_s)


def test_limits_follow_prefix_speculation_and_stages() -> None:
    shared = limits(kv_capacity_tokens=45_000 + 300, prefix_hit_rate=0.5)
    assert shared["KV capacity"] == pytest.approx(45_000 / 450.5)
    budget = limits(
        max_num_batched_tokens=1000,
        prefix_hit_rate=0.5,
        draft_tokens=1,
        acceptance_rate=0.5,
        pipeline_parallel_size=2,
    )
    assert budget["token budget"] == pytest.approx(2 * 1000 / (2 + 300 * 1.5 / 300))
    assert math.isnan(limits(max_num_batched_tokens=9, chunked_prefill=False)["token budget"])
    assert math.isnan(limits(kv_capacity_tokens=9, static=True)["KV capacity"])


def test_one_request_runs_whatever_the_limits_say() -> None:
    tight = {"kv_capacity_tokens": 10, "max_num_batched_tokens": 1}
    assert STEP.predict(LAW, point(batch=512, batch_is_cap=True, **tight)).batch == 1


@pytest.mark.parametrize(
    ("serving", "complaint"),
    [
        ({"prefix_hit_rate": 1.5}, "prefix_hit_rate = 1.5"),
        ({"draft_tokens": -1}, "draft_tokens = -1"),
        ({"acceptance_rate": 0.5}, "say how many draft_tokens"),
        ({"draft_tokens": 2, "acceptance_rate": math.nan}, "acceptance_rate = nan"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size = 0"),
        ({"static": True, "chunked_prefill": True}, "leave one of the two"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(
    serving: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ServefitError) as error:
        Serving.of(**serving)
    assert complaint in str(error.value)


# What is said of all this.

EXOTIC = {
    "mixture of experts": point(MIXTURE),
    "multi-head latent attention": point(LATENT),
    "sliding windows": replace(point(WINDOWED), input_tokens=np.array(900.0)),
    "recurrent layers": point(RECURRENT),
    "quantised weights": point(DENSE.with_dtypes("fp8", "float16")),
    "quantised KV cache": point(DENSE.with_dtypes(None, "fp8")),
    "prefix caching": point(prefix_hit_rate=0.5),
    "speculative decoding": point(draft_tokens=2, acceptance_rate=0.5),
    "pipeline parallelism": point(pipeline_parallel_size=2),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_part_that_no_row_exercised_is_marked_by_name(name: str) -> None:
    assert features_of(EXOTIC[name]) == {name}
    fitted = replace(LAW, residuals=(None,))
    (sentence,) = cautions(fitted, EXOTIC[name])
    assert sentence.startswith(f"{name}: uncalibrated")
    assert cautions(replace(fitted, features=(name,)), EXOTIC[name]) == []


def half_width(fit: Calibration, points: Points) -> float:
    found = STEP.spread(fit, points)
    assert found is not None
    return float(np.max(found["e2e_s"].log_half_width(0.9)))


@pytest.mark.parametrize("name", FORMULAS)
def test_what_only_a_formula_stands_for_is_less_sure(name: str) -> None:
    known = {"formulas": Discrepancy(0.1, 1.0, 2.0, levels=("",))}
    dense = replace(LAW, degrees_of_freedom=10, discrepancies=known)
    assert half_width(dense, EXOTIC[name]) > 2 * half_width(dense, point())
    seen = {"formulas": replace(known["formulas"], levels=("", name))}
    calibrated = replace(dense, discrepancies=seen)
    assert half_width(calibrated, EXOTIC[name]) == pytest.approx(half_width(dense, point()))


def test_only_the_rows_beyond_the_window_rest_on_its_formula() -> None:
    lengths = np.array([100.0, 600.0, 900.0])
    flat, serving = flatten(replace(point(WINDOWED), input_tokens=lengths))
    assert formulas_of_rows(flat, serving).tolist() == ["", "", "sliding windows"]


def test_a_window_that_no_context_reaches_is_no_feature() -> None:
    assert features_of(point(WINDOWED)) == frozenset()


def test_a_fit_remembers_what_its_rows_exercised_and_its_file_too() -> None:
    points = Points.of(
        MIXTURE, GPU, input_tokens=[100.0, 100, 400], output_tokens=64.0, batch=[1.0, 8, 32]
    )
    points = replace(
        points,
        model_index=np.zeros(3, dtype=np.int64),
        hardware_index=np.zeros(3, dtype=np.int64),
        output_tokens=np.full(3, 64.0),
        tensor_parallel_size=np.ones(3),
    )
    answer = STEP.predict(LAW, points)
    seen = Observations(points, answer.total_tokens_per_s, answer.e2e_s, np.arange(3))
    fit = STEP.fit(seen)
    assert fit.features == ("mixture of experts",)
    assert fit.discrepancies["formulas"].levels == ("", "mixture of experts")
    assert Calibration.from_json(fit.to_json()).features == fit.features
    assert cautions(fit, point(MIXTURE)) == []
    assert "multi-head latent attention: uncalibrated" in cautions(fit, point(LATENT))[0]


def test_priors_say_that_nothing_was_measured() -> None:
    assert cautions(STEP.prior(), point()) == ["nothing was measured: every parameter is its prior"]


def test_slim_says_what_it_leaves_out() -> None:
    slim = replace(slim_calibration(), residuals=(None,))
    assert cautions(slim, point()) == []
    asked = replace(
        point(pipeline_parallel_size=2, batch_is_cap=True, static=True),
        tensor_parallel_size=np.array(4.0),
    )
    said = cautions(slim, asked)
    for name in ("tensor parallelism", "pipeline parallelism", "static batching", "max_num_seqs"):
        assert any(s.startswith(name) and "left out by the law slim" in s for s in said), name


def test_a_law_fitted_on_what_it_leaves_out_notes_it() -> None:
    points = replace(
        point(),
        model_index=np.zeros(3, dtype=np.int64),
        hardware_index=np.zeros(3, dtype=np.int64),
        input_tokens=np.full(3, 600.0),
        output_tokens=np.full(3, 300.0),
        batch=np.array([1.0, 4, 16]),
        tensor_parallel_size=np.array([1.0, 2, 4]),
    )
    answer = STEP.predict(LAW, points)
    seen = Observations(points, answer.total_tokens_per_s, answer.e2e_s, np.arange(3))
    note = "tensor parallelism: left out by the law slim"
    assert any(n.startswith(note) for n in get_law("slim").fit(seen).notes)
    assert not any("left out" in n for n in STEP.fit(seen).notes)


# Why.


def test_a_decode_step_is_explained_by_its_parts() -> None:
    points = replace(point(), batch=np.array([1.0, 16, 256]))
    found = why(LAW, points)
    assert sum(found.terms_s.values()) == pytest.approx(found.decode_step_s)
    one = seconds(steps(decode=16, context=600 + 301 / 2), theta=TYPICAL)
    assert found.decode_step_s[1] == pytest.approx(one)
    weights, kv = float(DENSE.streamed_weight_bytes(16)), 16 * 750.5 * DENSE.kv_bytes_per_token
    assert found.bandwidth_fraction[1] == pytest.approx((weights + kv) / (BANDWIDTH * one))
    flops = 16 * (2 * DENSE.num_matmul_parameters + float(DENSE.decode_attention_flops(750.5)))
    assert found.flops_fraction[1] == pytest.approx(flops / (FLOPS * one))
    ideal = why(calibration(IDEAL), points)
    assert (ideal.bandwidth_fraction < 1).all()
    assert ideal.bandwidth_fraction[0] == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("model", [DENSE, MIXTURE, WINDOWED])
def test_at_the_knee_the_cache_costs_what_all_requests_share(model: object) -> None:
    found = why(LAW, point(model))
    knee = float(found.knee_batch)
    cost = step_cost(
        model,
        GPU,
        1,
        steps(decode=knee, context=750.5, context_sd=300 / math.sqrt(12)),
    )
    shared_s = TYPICAL["step_s"] + 32 * TYPICAL["layer_s"]
    shared_s += float(cost.weights_s[0]) / TYPICAL["weight_bandwidth_efficiency"]
    at_knee = why(LAW, point(model, batch=knee))
    assert float(at_knee.terms_s["KV cache"]) == pytest.approx(shared_s, rel=1e-6)


@pytest.mark.parametrize("serving", [{}, {"chunked_prefill": False}, {"static": True}])
def test_throughput_climbs_to_the_plateau_and_not_beyond(serving: dict[str, object]) -> None:
    batches = np.array([1.0, 100, 1e4, 1e6])
    room = {**serving, "kv_capacity_tokens": 1e15, "max_num_batched_tokens": 1e12}
    points = replace(point(**room), batch=batches)
    climbing = STEP.predict(LAW, points).total_tokens_per_s
    plateau = why(LAW, points).plateau_tokens_per_s
    assert (np.diff(climbing) > 0).all()
    assert (climbing < plateau).all()
    assert climbing[-1] == pytest.approx(plateau[-1], rel=1e-3)


def test_other_laws_have_no_steps_to_explain() -> None:
    with pytest.raises(ServefitError, match="no engine steps"):
        why(slim_calibration(), point())
