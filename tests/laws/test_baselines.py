from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN
from servefit.laws import LAWS, Observations, get_law, predict, spread
from servefit.laws.imai import roofline_s
from servefit.laws.llmvisor import service_ttft_s
from servefit.points import EngineSteps, Points

from .conftest import GPU, LARGE, SMALL, slim_calibration, synthetic_runs

BASELINES = ("llmvisor", "imai", "imai-roofline")


@pytest.fixture
def runs() -> Observations:
    return synthetic_runs(slim_calibration(), (SMALL, LARGE))


def with_times(runs: Observations) -> Observations:
    """TTFT and ITL that are linear in LLMVisor's features, steeper beyond 4,096 and 16."""
    points = runs.points
    tokens = points.batch * points.input_tokens
    ttft_s = 0.01 + 1e-5 * tokens + 1e-10 * tokens * points.input_tokens + 1e-4 * points.batch
    ttft_s = np.where(tokens > 4096, 1.5 * ttft_s + 0.02, ttft_s)
    context = points.batch * (points.input_tokens + (points.output_tokens + 1) / 2)
    itl_s = 5e-3 + 1e-5 * points.batch + 1e-8 * context
    itl_s = np.where(points.batch > 16, 2 * itl_s, itl_s)
    e2e_s = ttft_s + (points.output_tokens - 1) * itl_s
    throughput = points.batch * (points.input_tokens + points.output_tokens) / e2e_s
    return replace(
        runs,
        total_tokens_per_s=throughput,
        e2e_s=e2e_s,
        ttft_s=ttft_s,
        tpot_s=itl_s,
        itl_s=itl_s,
    )


def test_llmvisor_recovers_its_own_two_segments(runs: Observations) -> None:
    runs = with_times(runs)
    fit = get_law("llmvisor").fit(runs)
    answer = predict(fit, runs.points)
    assert 4096 <= fit.settings["prefill_break_tokens"] < 16 * 512
    assert 16 < fit.settings["decode_break_requests"] < 64
    assert answer.ttft_s == pytest.approx(runs.ttft_s, rel=1e-6)
    assert answer.tpot_s == pytest.approx(runs.itl_s, rel=1e-6)
    assert answer.e2e_s == pytest.approx(runs.e2e_s, rel=1e-6)
    assert fit.train_mape_pct["e2e_s"] == pytest.approx(0, abs=1e-4)


def test_llmvisor_infers_ttft_and_counts_the_rows_that_it_loses(runs: Observations) -> None:
    runs = with_times(runs)
    ttft_s = np.full_like(runs.ttft_s, np.nan)
    broken = runs.tpot_s.copy()
    broken[:3] *= 10  # (OL - 1) TPOT beyond E2E: no TTFT is left
    runs = replace(runs, ttft_s=ttft_s, tpot_s=broken)
    inferred = service_ttft_s(runs)
    assert np.isnan(inferred[:3]).all()
    assert inferred[3:] == pytest.approx(with_times(runs).ttft_s[3:], rel=1e-9)
    fit = get_law("llmvisor").fit(runs)
    assert any("3 of 90 rows" in note and "prefill" in note for note in fit.notes)


def test_llmvisor_is_not_fittable_without_ttft_or_tpot(runs: Observations) -> None:
    with pytest.raises(ServefitError, match="not fittable: no row carries a service TTFT"):
        get_law("llmvisor").fit(runs)
    no_itl = replace(with_times(runs), tpot_s=np.array(np.nan), itl_s=np.array(np.nan))
    with pytest.raises(ServefitError, match="not fittable: no row carries ITL or TPOT"):
        get_law("llmvisor").fit(no_itl)


def test_llmvisor_has_one_segment_where_rows_are_few(runs: Observations) -> None:
    few = take(with_times(runs), np.arange(5))
    fit = get_law("llmvisor").fit(few)
    assert fit.settings["prefill_break_tokens"] is None
    assert fit.settings["decode_break_requests"] is None
    assert len(fit.parameters) == 4 + 3


def take(runs: Observations, chosen: np.ndarray) -> Observations:
    points = runs.points
    chosen_points = replace(
        points,
        model_index=points.model_index[chosen],
        hardware_index=points.hardware_index[chosen],
        input_tokens=points.input_tokens[chosen],
        output_tokens=points.output_tokens[chosen],
        batch=points.batch[chosen],
        tensor_parallel_size=points.tensor_parallel_size[chosen],
    )
    return Observations(
        chosen_points,
        runs.total_tokens_per_s[chosen],
        runs.e2e_s[chosen],
        runs.rows[chosen],
        *(np.broadcast_to(a, runs.e2e_s.shape)[chosen] for a in (runs.ttft_s, runs.tpot_s)),
        itl_s=np.broadcast_to(runs.itl_s, runs.e2e_s.shape)[chosen],
    )


def test_imai_recovers_a_bilinear_latency(runs: Observations) -> None:
    points = runs.points
    width = points.per_model(lambda m: m.hidden_size)
    e2e_s = 0.5 + 1e-3 * points.batch + 1e-6 * points.batch * points.input_tokens
    e2e_s = e2e_s + 1e-6 * points.output_tokens * width
    throughput = points.batch * (points.input_tokens + points.output_tokens) / e2e_s
    linear = replace(runs, e2e_s=e2e_s, total_tokens_per_s=throughput)
    fit = get_law("imai").fit(linear)
    assert predict(fit, points).e2e_s == pytest.approx(e2e_s, rel=1e-8)
    assert len(fit.parameters) == 22
    assert any(p.value < 0 for p in fit.parameters)


def test_imai_never_predicts_below_the_smallest_latency_trained_on(runs: Observations) -> None:
    fit = get_law("imai").fit(runs)
    tiny = Points.of(SMALL, GPU, input_tokens=1, output_tokens=1, batch=1)
    assert float(predict(fit, tiny).e2e_s) >= float(runs.e2e_s.min())


def test_the_roofline_alone_needs_no_regression() -> None:
    """At large batch a decode step is bound by the KV cache, and time follows bandwidth."""
    points = Points.of(SMALL, GPU, input_tokens=4096, output_tokens=512, batch=[64, 128])
    slow = replace(GPU, memory_bandwidth_bytes_per_s=GPU.memory_bandwidth_bytes_per_s / 2)
    fast_s, slow_s = roofline_s(points), roofline_s(replace(points, hardware=(slow,)))
    assert (fast_s < slow_s).all()
    assert (slow_s <= 2 * fast_s + 1e-12).all()
    one = Points.of(SMALL, GPU, input_tokens=1, output_tokens=2, batch=1)
    weights_s = SMALL.streamed_weight_bytes(1) / GPU.memory_bandwidth_bytes_per_s
    assert float(roofline_s(one)) == pytest.approx(2 * float(weights_s), rel=0.01)


def test_the_roofline_variant_recovers_a_roofline_with_overhead(runs: Observations) -> None:
    e2e_s = roofline_s(runs.points) + 0.2 + 1e-3 * runs.points.batch
    tokens = runs.points.batch * (runs.points.input_tokens + runs.points.output_tokens)
    shifted = replace(runs, e2e_s=e2e_s, total_tokens_per_s=tokens / e2e_s)
    fit = get_law("imai-roofline").fit(shifted)
    answer = predict(fit, runs.points)
    assert answer.e2e_s == pytest.approx(e2e_s, rel=1e-8)
    assert sum(answer.terms_s.values()) == pytest.approx(answer.e2e_s)


def test_the_roofline_variant_needs_known_peaks(runs: Observations) -> None:
    unknown = replace(runs, points=replace(runs.points, hardware=(UNKNOWN,)))
    with pytest.raises(ServefitError, match="peaks of unknown are unknown"):
        get_law("imai-roofline").fit(unknown)
    assert get_law("imai").fit(unknown).law == "imai"


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_are_data_and_state_no_uncertainty(name: str, runs: Observations) -> None:
    law = LAWS[name]
    fit = law.fit(with_times(runs))
    again = Calibration.from_json(fit.to_json())
    assert predict(again, runs.points).e2e_s == pytest.approx(predict(fit, runs.points).e2e_s)
    assert spread(fit, runs.points) is None
    assert all(p.stderr is None for p in fit.parameters)
    assert (predict(fit, runs.points).e2e_s > 0).all()
    with pytest.raises(ServefitError, match="no prediction without data"):
        law.prior()
    with pytest.raises(ServefitError, match="one engine step"):
        law.predict_steps(fit, steps())


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_refuse_a_single_point(name: str, runs: Observations) -> None:
    with pytest.raises(ServefitError, match="at least 2 distinct points"):
        LAWS[name].fit(take(with_times(runs), np.array([0, 0, 0])))


def steps() -> EngineSteps:
    one = np.ones(1)
    index = np.zeros(1, dtype=np.int64)
    return EngineSteps((SMALL,), (GPU,), index, index, one, 0 * one, 0 * one, 0 * one, one, one)
