from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.advise import (
    ENGINES,
    Advice,
    Infeasible,
    Terms,
    candidate_caps,
    parse_slos,
    predicted_problem,
    recommend,
    replicas,
)
from servefit.advise.advisor import token_budget_limit
from servefit.errors import ServefitError
from servefit.laws import predict
from servefit.points import Points

from .conftest import GIB, GPU, MODEL, make_model, slim

POINT = Points.of(MODEL, GPU, input_tokens=100, output_tokens=28, batch=1)


def advice(answer: Advice | Infeasible) -> Advice:
    assert isinstance(answer, Advice), answer
    return answer


def test_every_integer_is_tried_and_the_largest_that_meets_the_slo_is_recommended() -> None:
    problem = predicted_problem(slim(), POINT, parse_slos(["e2e=500ms"]))
    answer = advice(recommend(problem, epsilon=0.0))
    cap = answer.decision.chosen.batch_cap
    at, after = predict(slim(), POINT.with_batch([float(cap), cap + 1.0])).e2e_s
    assert at <= 0.5 < after
    assert answer.decision.bounded_by == ("SLO E2E <= 500 ms",)


def test_kv_cache_freed_memory_and_settings_belong_to_the_recommended_cap() -> None:
    terms = Terms(candidates=[16, 64, 100], other_bytes=GIB)
    answer = advice(recommend(predicted_problem(slim(), POINT, (), terms), epsilon=0.0))
    assert answer.decision.chosen.batch_cap == 100
    assert answer.memory is not None
    assert answer.memory.reservation is not None
    assert answer.kv_bytes == 100 * 128 * 196_608
    assert answer.freed_bytes == answer.memory.reservation.kv_bytes - answer.kv_bytes
    assert answer.settings.text.startswith("--max-num-seqs 100 --kv-cache-memory-bytes ")


def test_the_kv_capacity_ends_the_candidates() -> None:
    small = replace(POINT, hardware=(replace(GPU, memory_bytes=6.0 * GIB),))
    answer = advice(recommend(predicted_problem(slim(), small), epsilon=0.0))
    assert answer.memory is not None
    assert answer.decision.chosen.batch_cap == answer.memory.capacity_requests
    assert answer.decision.bounded_by == ("KV capacity",)
    assert answer.freed_bytes is not None
    assert answer.freed_bytes >= 0


def test_a_model_that_does_not_fit_says_on_how_many_gpus_it_would() -> None:
    small = replace(POINT, hardware=(replace(GPU, memory_bytes=4.0 * GIB),))
    answer = recommend(predicted_problem(slim(), small))
    assert isinstance(answer, Infeasible)
    assert answer.constraint == "KV capacity"
    assert "2 GPUs hold it: --tensor-parallel-size 2" in answer.message


def test_the_engines_own_limit_bounds_the_batch() -> None:
    terms = Terms(engine=ENGINES["llama.cpp"])
    answer = advice(recommend(predicted_problem(slim(), POINT, (), terms), epsilon=0.0))
    assert answer.decision.chosen.batch_cap <= 256


def test_confidence_costs_batch_and_the_cost_is_shown() -> None:
    slos = parse_slos(["e2e=500ms"])
    careful = advice(recommend(predicted_problem(slim(), POINT, slos, confidence=0.9)))
    point = advice(recommend(predicted_problem(slim(), POINT, slos)))
    assert point.point_estimate is None
    assert careful.point_estimate is not None
    assert careful.point_estimate.batch_cap == point.decision.chosen.batch_cap
    assert careful.decision.chosen.batch_cap < point.decision.chosen.batch_cap
    assert careful.decision.chosen.latency_bound_s["e2e"] <= 0.5
    assert careful.point_estimate.latency_bound_s["e2e"] > 0.5


def test_a_relative_slo_is_a_multiple_of_the_same_curve_or_of_other_lengths() -> None:
    own = predicted_problem(slim(), POINT, parse_slos(["e2e=1x@32"]))
    assert advice(recommend(own, epsilon=0.0)).decision.chosen.batch_cap == 32
    other = predicted_problem(
        slim(), POINT, parse_slos(["e2e=2x@batch=32,input_tokens=2,output_tokens=128"])
    )
    reference = Points.of(MODEL, GPU, input_tokens=2, output_tokens=128, batch=32)
    assert other.slos[0].limit_s == pytest.approx(2 * float(predict(slim(), reference).e2e_s))


def test_the_token_budget_of_chunked_prefill_bounds_the_batch() -> None:
    # 512 tokens a step: each of B requests decodes one and brings 242/130 of prompt.
    assert token_budget_limit(512, 242, 130).max_batch == 178
    terms = Terms(max_num_batched_tokens=100)
    answer = advice(recommend(predicted_problem(slim(), POINT, (), terms), epsilon=0.0))
    assert answer.decision.chosen.batch_cap == math.floor(100 / (1 + 100 / 28))
    assert answer.decision.bounded_by == ("token budget",)


def test_replicas_at_the_prediction_and_at_its_lower_bound() -> None:
    problem = predicted_problem(slim(), POINT, (), confidence=0.9)
    answer = advice(recommend(problem, rate_per_s=100.0))
    assert answer.replicas is not None
    chosen = answer.decision.chosen
    assert answer.replicas.count == math.ceil(100 / chosen.requests_per_s)
    at_least = chosen.throughput_bound / 128
    assert at_least < chosen.requests_per_s
    assert answer.replicas.count_with_confidence == math.ceil(100 / at_least)


@pytest.mark.parametrize(
    ("rate", "each", "count"),
    [(1.1, 0.1, 11), (0.3, 0.1, 3), (10, 2.5, 4), (10.0001, 2.5, 5), (0.01, 2.5, 1), (7, 7, 1)],
)
def test_replicas_are_exact_where_the_ratio_is_whole(rate: float, each: float, count: int) -> None:
    assert replicas(rate, each).count == count


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_replicas_serve_the_rate_and_one_fewer_would_not(rate: float, each: float) -> None:
    answer = replicas(rate, each)
    assert 0 < answer.utilization <= 1 + 1e-9
    assert answer.count == 1 or (answer.count - 1) * each < rate


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(ServefitError, match="rate"):
        replicas(rate, 1.0)
    with pytest.raises(ServefitError, match="rate"):
        replicas(1e308, 1e-3)


def test_a_hundred_thousand_candidates_are_as_good_as_few() -> None:
    tiny = replace(
        POINT,
        models=(make_model(layers=1, heads=1, kv_heads=1),),
        input_tokens=np.float64(8),
        output_tokens=np.float64(8),
    )
    terms = Terms(candidates=candidate_caps(np.arange(1, 100_001)))
    problem = predicted_problem(slim(), tiny, parse_slos(["e2e=1x@4321"]), terms)
    answer = advice(recommend(problem, epsilon=0.0))
    assert answer.decision.chosen.batch_cap == 4321
