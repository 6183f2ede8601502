from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.advise import Curve, candidate_caps, every_batch, measured_curve, predicted_curve
from servefit.errors import ServefitError
from servefit.laws import predict
from servefit.points import Points

from .conftest import GPU, MODEL, slim

POINT = Points.of(MODEL, GPU, input_tokens=100, output_tokens=28, batch=1)


def measured(caps: list[float], **given: object) -> Curve:
    defaults: dict = {
        "batch": caps,
        "total_tokens_per_s": [10.0 * c for c in caps],
        "latency_s": {"e2e": [1.0 + c for c in caps]},
        "input_tokens": [100.0] * len(caps),
        "output_tokens": [28.0] * len(caps),
    }
    return measured_curve(cap=caps, **(defaults | given))


def test_a_predicted_curve_is_the_laws_prediction() -> None:
    caps = candidate_caps([1, 8, 64])
    curve = predicted_curve(slim(), POINT, caps)
    answer = predict(slim(), POINT.with_batch([1.0, 8.0, 64.0]))
    np.testing.assert_array_equal(curve.total_tokens_per_s, answer.total_tokens_per_s)
    np.testing.assert_array_equal(curve.latency_s["tpot"], answer.tpot_s)
    assert curve.single_tokens_per_s == answer.total_tokens_per_s[0]
    assert curve.efficiency[0] == 1.0
    np.testing.assert_allclose(curve.requests_per_s, answer.total_tokens_per_s / 128)


def test_confidence_moves_the_bounds_and_not_the_estimate() -> None:
    caps = candidate_caps([1, 8, 64])
    point = predicted_curve(slim(), POINT, caps, confidence=0.5)
    careful = predicted_curve(slim(), POINT, caps, confidence=0.9)
    more = predicted_curve(slim(), POINT, caps, confidence=0.99)
    assert point.confidence is None
    for name in ("e2e", "ttft", "tpot"):
        np.testing.assert_array_equal(careful.latency_s[name], point.latency_s[name])
        assert (point.latency_bound_s[name] < careful.latency_bound_s[name]).all()
        assert (careful.latency_bound_s[name] < more.latency_bound_s[name]).all()
    assert (careful.throughput_bound < point.throughput_bound).all()


def test_a_fit_without_known_uncertainty_says_that_it_has_no_margin() -> None:
    curve = predicted_curve(slim(residual_sd=None), POINT, candidate_caps([4]), confidence=0.9)
    assert curve.confidence is None
    assert "uncertainty" in curve.notes[0]


@pytest.mark.parametrize("confidence", [0.4, 1.0, -1.0, float("nan")])
def test_an_impossible_confidence_is_refused(confidence: float) -> None:
    with pytest.raises(ServefitError, match="confidence"):
        predicted_curve(slim(), POINT, candidate_caps([4]), confidence=confidence)


def test_measured_runs_at_batch_1_give_t1() -> None:
    curve = measured([4, 1, 16])
    assert curve.cap.tolist() == [1, 4, 16]
    assert curve.single_tokens_per_s == 10.0
    assert curve.notes == ()


def test_without_a_run_at_batch_1_the_smallest_is_scaled_and_said() -> None:
    curve = measured([8, 32])
    assert curve.single_tokens_per_s == 10.0
    assert "T(1) is taken as T(8) / 8" in curve.notes[0]
    assert measured([8, 32], single_tokens_per_s=12.0).notes == ()


def test_a_batch_just_below_its_cap_is_no_assumption() -> None:
    curve = measured([1, 2], batch=[0.98, 1.96])
    assert curve.single_tokens_per_s == pytest.approx(10.0)
    assert curve.notes == ()


def test_repeats_are_averaged_and_said() -> None:
    curve = measured([1, 8, 8], total_tokens_per_s=[10.0, 70.0, 90.0])
    assert curve.cap.tolist() == [1, 8]
    assert curve.total_tokens_per_s.tolist() == [10.0, 80.0]
    assert "averaged" in curve.notes[0]


@given(st.permutations([1, 2, 4, 8, 16]))
def test_the_order_of_runs_does_not_matter(caps: list[int]) -> None:
    ordered, mixed = measured([1, 2, 4, 8, 16]), measured([float(c) for c in caps])
    np.testing.assert_array_equal(ordered.cap, mixed.cap)
    np.testing.assert_array_equal(ordered.total_tokens_per_s, mixed.total_tokens_per_s)
    np.testing.assert_array_equal(ordered.latency_s["e2e"], mixed.latency_s["e2e"])


@pytest.mark.parametrize(
    ("caps", "given", "complaint"),
    [
        ([], {}, "no measured run"),
        ([0, 4], {}, "batch cap = 0"),
        ([1, np.nan], {}, "batch cap = nan"),
        ([1, 4], {"batch": [1, np.nan]}, "batch = nan"),
        ([1, 4], {"output_tokens": [28, 56]}, "mix output_tokens 28 to 56"),
        ([1, 4], {"single_tokens_per_s": -1.0}, "T.1. = -1"),
    ],
)
def test_runs_that_make_no_curve_are_refused(
    caps: list[float], given: dict, complaint: str
) -> None:
    with pytest.raises(ServefitError, match=complaint):
        measured(caps, **given)


def test_only_keeps_measured_caps_and_refuses_others() -> None:
    curve = measured([1, 4, 16])
    assert curve.only(candidate_caps([16, 1])).cap.tolist() == [1, 16]
    with pytest.raises(ServefitError, match="candidate 8: not among the measured caps 1, 4, 16"):
        curve.only(candidate_caps([8]))


def test_candidates_are_whole_ascending_and_distinct() -> None:
    assert candidate_caps([8, 1, 8, 2]).tolist() == [1, 2, 8]
    assert every_batch(3).tolist() == [1, 2, 3]
    assert every_batch(0).tolist() == [1]
    assert every_batch(None).size == 1024
    for bad in ([], [1.5], [0], [np.nan], [1e300]):
        with pytest.raises(ServefitError, match="batch cap is a whole number"):
            candidate_caps(bad)
