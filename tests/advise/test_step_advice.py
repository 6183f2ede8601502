"""Advice on the curve of the step law, whose batch under a cap is worked out."""

from __future__ import annotations

import numpy as np
import pytest

from servefit import api
from servefit.advise import Terms, parse_slos, predicted_problem, recommend
from servefit.advise.advisor import Advice
from servefit.laws import get_law
from servefit.points import Points, Serving
from servefit.workload import Workload

from .conftest import GIB, GPU, MODEL

PRIOR = get_law("step").prior()
#: 2 x 24 layers x 32 heads x 64 x 2 bytes.
TOKEN_BYTES = 196_608


def point(workload: Workload | None = None, **serving: object) -> Points:
    return api.points_of(
        PRIOR,
        model=MODEL,
        gpu=GPU,
        input_tokens=None if workload else 200,
        output_tokens=None if workload else 100,
        workload=workload,
        batch=1,
        serving=Serving.of(**serving),
    )


def test_the_curve_shows_the_batch_that_runs_under_each_cap() -> None:
    terms = Terms(candidates=[8, 100, 4000], max_num_batched_tokens=600)
    curve = predicted_problem(PRIOR, point(), terms=terms).curve
    # 600 / (1 + 200/100) = 200 requests.
    assert curve.batch == pytest.approx([8, 100, 200])
    assert curve.total_tokens_per_s[2] > curve.total_tokens_per_s[1]
    memory = Terms(candidates=[8, 100, 4000], kv_capacity_tokens=50_000)
    curve = predicted_problem(PRIOR, point(), terms=memory).curve
    # In whole blocks a request holds 304 tokens; on average those of 250.5.
    assert curve.batch == pytest.approx([8, 100, 50_000 / 250.5], rel=0.02)


def test_a_budget_binds_only_where_prompts_are_chunked() -> None:
    terms = Terms(max_num_batched_tokens=600)
    chunked = predicted_problem(PRIOR, point(), terms=terms)
    assert [(x.name, x.max_batch) for x in chunked.limits] == [("token budget", 200)]
    assert chunked.curve.cap[-1] == 200
    whole = predicted_problem(PRIOR, point(chunked_prefill=False), terms=terms)
    assert whole.limits == ()
    assert whole.curve.cap[-1] > 200


def test_mixed_lengths_fit_by_mean_and_variance() -> None:
    mix = Workload.from_moments(200, 100, cv_input=0.5, cv_output=1.0)
    problem = predicted_problem(PRIOR, point(mix), terms=Terms(fit_probability=0.95))
    memory = problem.deployment.memory
    assert memory is not None
    mean = (mix.mean_context_tokens + 7.5) * TOKEN_BYTES
    assert memory.request_bytes == pytest.approx(mean)
    assert memory.request_sd_bytes == pytest.approx(mix.context_sd_tokens * TOKEN_BYTES)
    most = memory.capacity_requests
    assert most is not None
    assert memory.reservation is not None
    assert memory.needed_bytes(most) <= memory.reservation.kv_bytes < memory.needed_bytes(most + 1)
    assert problem.curve.cap[-1] == most
    certain = predicted_problem(PRIOR, point(mix), terms=Terms(fit_probability=0.5))
    assert certain.deployment.memory is not None
    assert certain.deployment.memory.capacity_requests == int(memory.reservation.kv_bytes / mean)


def test_running_requests_exceed_what_is_kept_for_them_as_seldom_as_asked() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.integers(1, 600, 5000)
    prompts = rng.integers(1, 900, 5000)
    mix = Workload.from_lengths(prompts, outputs)
    memory = predicted_problem(PRIOR, point(mix)).deployment.memory
    assert memory is not None
    met = rng.choice(5000, size=(4000, 50), p=outputs / outputs.sum())
    context = prompts[met] + rng.random(met.shape) * outputs[met]
    blocks = np.ceil(context / 16) * 16
    held = blocks.sum(axis=1) * TOKEN_BYTES
    assert 0.98 < np.mean(held <= memory.needed_bytes(50)) < 0.998


def test_a_static_batch_is_counted_at_its_end() -> None:
    even = Workload.from_moments(200, 100)
    assert not even.is_mixed
    memory = predicted_problem(PRIOR, point(even, static=True)).deployment.memory
    assert memory is not None
    assert (memory.request_tokens, memory.probability) == (304, None)


def test_a_relative_slo_refers_to_the_same_workload_and_schedule() -> None:
    mix = Workload.from_moments(200, 100, cv_output=1.5)
    (slo,) = predicted_problem(PRIOR, point(mix), parse_slos(["tpot=2x@32"])).slos
    (plain,) = predicted_problem(PRIOR, point(), parse_slos(["tpot=2x@32"])).slos
    own = get_law("step").predict(PRIOR, point(mix).with_batch(32))
    assert slo.limit_s == pytest.approx(2 * float(own.tpot_s))
    assert slo.limit_s > plain.limit_s


@pytest.mark.parametrize("serving", [{}, {"chunked_prefill": False}, {"static": True}])
def test_an_slo_holds_with_confidence_and_its_cost_is_shown(serving: dict[str, object]) -> None:
    problem = predicted_problem(PRIOR, point(**serving), parse_slos(["tpot=12ms"]), confidence=0.9)
    advice = recommend(problem, epsilon=0)
    assert isinstance(advice, Advice)
    assert advice.decision.chosen.latency_bound_s["tpot"] <= 12e-3
    assert advice.point_estimate is not None
    assert advice.point_estimate.batch_cap > advice.decision.chosen.batch_cap
    assert advice.point_estimate.latency_s["tpot"] <= 12e-3


def test_stages_share_weights_and_cache() -> None:
    one, four = (
        predicted_problem(PRIOR, point(pipeline_parallel_size=s)).deployment.memory for s in (1, 4)
    )
    assert one is not None
    assert four is not None
    assert four.request_bytes == one.request_bytes / 4
    assert four.weight_bytes == one.weight_bytes / 4
    assert four.reservation is not None
    held = GPU.memory_bytes * 0.9 - four.weight_bytes - 2 * GIB
    assert four.reservation.kv_bytes == held
