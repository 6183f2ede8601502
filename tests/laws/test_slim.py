from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN
from servefit.laws import Observations, predict, spread
from servefit.laws.slim import PARAMETERS, Slim, active_context_sum, prefill_flops
from servefit.points import Points

from .conftest import GPU, LARGE, SMALL, slim_calibration, synthetic_runs

lengths = st.floats(1, 1e5)
batches = st.floats(0.5, 1e5)


def reorder(runs: Observations, order: np.ndarray) -> Observations:
    points = runs.points
    return Observations(
        replace(
            points,
            model_index=points.model_index[order],
            hardware_index=points.hardware_index[order],
            input_tokens=points.input_tokens[order],
            output_tokens=points.output_tokens[order],
            batch=points.batch[order],
            tensor_parallel_size=points.tensor_parallel_size[order],
        ),
        runs.total_tokens_per_s[order],
        runs.e2e_s[order],
        runs.rows[order],
    )


def test_active_context_is_the_sum_over_decode_steps() -> None:
    for il, ol in ((2, 128), (242, 390), (1, 1)):
        by_steps = sum(il + j for j in range(1, ol + 1))
        assert active_context_sum(np.float64(il), np.float64(ol)) == by_steps


def test_prefill_flops_are_equation_8() -> None:
    layers, width, ratio, batch, prompt = 12, 1024, 4, 3, 100
    expected = layers * (
        batch * prompt * (4 * width**2 + 4 * width * width + 4 * ratio * width**2)
        + 4 * batch * prompt**2 * width
    )
    points = Points.of(SMALL, GPU, input_tokens=prompt, output_tokens=1, batch=batch)
    assert prefill_flops(points) == pytest.approx(expected, rel=1e-12)


def test_a_hand_computed_point() -> None:
    points = Points.of(SMALL, GPU, input_tokens=100, output_tokens=10, batch=4)
    answer = predict(slim_calibration(), points)
    prefill = prefill_flops(points) / (0.45 * 1e15)
    kv_bytes = 2 * 12 * 1024 * 2 * (10 * 100 + 10 * 11 / 2)
    decode = (4 + 40) * (2e-5 * 10 + 2e-7 * 12 * 1 * 10 + kv_bytes / (0.7 * 2e12))
    assert answer.e2e_s == pytest.approx(prefill + decode + 0.02, rel=1e-12)
    assert answer.total_tokens_per_s == pytest.approx(4 * 110 / answer.e2e_s, rel=1e-12)
    assert answer.tpot_s == pytest.approx(decode / 9, rel=1e-12)
    assert answer.ttft_s == pytest.approx(prefill + 0.02, rel=1e-12)


def test_the_other_reading_of_equation_9_spares_the_kv_traffic() -> None:
    points = Points.of(SMALL, GPU, input_tokens=100, output_tokens=10, batch=4)
    product = predict(slim_calibration(), points)
    other = predict(replace(slim_calibration(), settings={"decode_form": "sum"}), points)
    assert other.terms_s["KV traffic"] == pytest.approx(product.terms_s["KV traffic"] * 4 / 44)
    assert other.terms_s["dense decode"] == product.terms_s["dense decode"]


def test_tpot_is_unknown_at_one_output_token() -> None:
    points = Points.of(SMALL, GPU, input_tokens=100, output_tokens=1, batch=4)
    assert np.isnan(predict(slim_calibration(), points).tpot_s)


def test_parameters_are_recovered_from_runs_of_the_same_law(decode_form: str) -> None:
    truth = replace(slim_calibration(), settings={"decode_form": decode_form})
    fit = Slim(decode_form).fit(synthetic_runs(truth, (SMALL, LARGE)))
    for found, true in zip(fit.parameters, truth.parameters, strict=True):
        assert found.value == pytest.approx(true.value, rel=1e-3), found.name
        assert found.identified
        assert found.at_bound is None
    assert fit.train_mape_pct["total_tokens_per_s"] == pytest.approx(0, abs=1e-3)


def test_standard_errors_cover_the_truth_of_noisy_runs() -> None:
    truth = slim_calibration()
    clean = synthetic_runs(truth, (SMALL, LARGE))
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(20):
        noise = 1 + 0.03 * rng.standard_normal(len(clean.rows))
        fit = Slim().fit(replace(clean, total_tokens_per_s=clean.total_tokens_per_s * noise))
        for found, true in zip(fit.parameters, truth.parameters, strict=True):
            if found.stderr is not None:
                inside += abs(found.value - true.value) < 2 * found.stderr
    assert 0.88 < inside / 120 <= 1.0


def test_one_model_cannot_tell_alpha_from_gamma() -> None:
    fit = Slim().fit(synthetic_runs(slim_calibration(), (SMALL,)))
    by_name = {p.name: p for p in fit.parameters}
    assert not by_name["alpha"].identified
    assert not by_name["gamma"].identified
    assert by_name["alpha"].stderr is None
    assert by_name["B0"].identified
    assert any("alpha, gamma" in note for note in fit.notes)
    # Their joint effect is known all the same, for the model that was measured ...
    points = Points.of(SMALL, GPU, input_tokens=100, output_tokens=100, batch=10)
    exact = predict(slim_calibration(), points).e2e_s
    assert predict(fit, points).e2e_s == pytest.approx(exact, rel=1e-3)


def test_the_interval_widens_where_the_runs_do_not_determine_the_answer() -> None:
    clean = synthetic_runs(slim_calibration(), (SMALL,))
    noise = 1 + 0.02 * np.random.default_rng(1).standard_normal(len(clean.rows))
    fit = Slim().fit(replace(clean, total_tokens_per_s=clean.total_tokens_per_s * noise))
    kwargs = {"input_tokens": 100, "output_tokens": 100, "batch": 10}
    seen = spread(fit, Points.of(SMALL, GPU, **kwargs))
    unseen = spread(fit, Points.of(LARGE, GPU, **kwargs))
    assert seen is not None
    assert unseen is not None
    assert unseen["e2e_s"].log_sd > 3 * seen["e2e_s"].log_sd


def test_fewer_rows_than_parameters_leave_the_errors_unknown() -> None:
    runs = synthetic_runs(slim_calibration(), (SMALL,))
    few = reorder(runs, np.array([0, 7, 40]))
    fit = Slim().fit(few)
    assert fit.residual_sd is None
    assert all(p.stderr is None for p in fit.parameters)
    assert spread(fit, few.points) is None
    assert any("degrees of freedom" in note for note in fit.notes)


def test_one_distinct_point_is_refused() -> None:
    runs = reorder(synthetic_runs(slim_calibration(), (SMALL,)), np.array([3, 3, 3]))
    with pytest.raises(ServefitError, match=r"at least 2 distinct points .* got 1"):
        Slim().fit(runs)


def test_unknown_peaks_are_fitted_as_rates() -> None:
    runs = synthetic_runs(slim_calibration(), (SMALL, LARGE))
    blind = replace(runs, points=replace(runs.points, hardware=(UNKNOWN,)))
    fit = Slim().fit(blind)
    by_name = {p.name: p for p in fit.parameters}
    assert by_name["eta_c"].value == pytest.approx(0.45 * 1e15 / 1e12, rel=1e-2)
    assert by_name["eta_m"].value == pytest.approx(0.7 * 2e12 / 1e12, rel=1e-2)
    assert by_name["eta_c"].unit == "1e12/s"
    assert predict(fit, blind.points).e2e_s == pytest.approx(runs.e2e_s, rel=1e-3)


def test_peaks_that_are_known_in_part_are_fitted_as_rates_of_both() -> None:
    runs = synthetic_runs(slim_calibration(), (SMALL, LARGE))
    half = replace(UNKNOWN, name="half", memory_bandwidth_bytes_per_s=2e12)
    fits = [
        Slim().fit(replace(runs, points=replace(runs.points, hardware=(gpu,))))
        for gpu in (UNKNOWN, half)
    ]
    assert fits[1].theta() == pytest.approx(fits[0].theta(), rel=1e-9)


def test_the_fit_does_not_depend_on_row_order() -> None:
    runs = synthetic_runs(slim_calibration(), (SMALL, LARGE))
    noise = 1 + 0.05 * np.random.default_rng(2).standard_normal(len(runs.rows))
    runs = replace(runs, total_tokens_per_s=runs.total_tokens_per_s * noise)
    shuffled = reorder(runs, np.random.default_rng(3).permutation(len(runs.rows)))
    one, other = Slim().fit(runs), Slim().fit(shuffled)
    assert one.runs_fingerprint == other.runs_fingerprint
    assert other.theta() == pytest.approx(one.theta(), rel=1e-4)


def test_a_fit_survives_its_file() -> None:
    fit = Slim().fit(synthetic_runs(slim_calibration(), (SMALL, LARGE)))
    again = Calibration.from_json(fit.to_json())
    points = Points.of(LARGE, GPU, input_tokens=77, output_tokens=99, batch=[1, 8, 300])
    assert (predict(again, points).e2e_s == predict(fit, points).e2e_s).all()
    assert again == fit


def test_slim_has_no_prior() -> None:
    with pytest.raises(ServefitError, match="no prediction without data"):
        Slim().prior()


@given(lengths, lengths, batches)
def test_throughput_is_positive_and_terms_sum_to_e2e(il: float, ol: float, b: float) -> None:
    answer = predict(
        slim_calibration(), Points.of(SMALL, GPU, input_tokens=il, output_tokens=ol, batch=b)
    )
    assert answer.total_tokens_per_s > 0
    assert sum(answer.terms_s.values()) == pytest.approx(answer.e2e_s)
    assert answer.prefill_s + answer.decode_s <= answer.e2e_s * (1 + 1e-12)


@given(lengths, lengths, batches, st.floats(1.001, 10))
def test_e2e_grows_with_batch_and_with_both_lengths(
    il: float, ol: float, b: float, factor: float
) -> None:
    def e2e(il: float, ol: float, b: float) -> float:
        points = Points.of(SMALL, GPU, input_tokens=il, output_tokens=ol, batch=b)
        return float(predict(slim_calibration(), points).e2e_s)

    here = e2e(il, ol, b)
    assert e2e(il * factor, ol, b) > here
    assert e2e(il, ol * factor, b) > here
    assert e2e(il, ol, b * factor) > here


def test_every_parameter_states_bounds_that_hold_its_reference() -> None:
    for p in PARAMETERS:
        assert 0 < p.lower < p.reference < p.upper, p.name
        assert p.meaning, p.name
