"""How far the step law trusts itself: priors with reasons, intervals that cover and widen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from servefit.calibration import Calibration, Discrepancy
from servefit.hardware import UNKNOWN
from servefit.laws import Observations, predict, spread
from servefit.laws.base import Spread
from servefit.laws.intervals import intervals
from servefit.laws.step import StepLaw
from servefit.laws.step.parameters import PRIORS, UNKNOWN_PEAKS, Prior
from servefit.laws.step.posterior import spread as total_spread
from servefit.points import Points, Serving

from .conftest import GPU, LARGE, SMALL

LAW = StepLaw()
NOISE = 0.03


@pytest.mark.parametrize("prior", [*PRIORS, *UNKNOWN_PEAKS], ids=lambda p: p.name)
def test_every_prior_says_what_it_is_and_why(prior: Prior) -> None:
    assert prior.meaning
    assert len(prior.reason.split()) > 10
    assert prior.median > 0
    assert prior.log_sd > 0


def drawn(rng: np.random.Generator) -> Calibration:
    """An engine drawn from the priors."""
    prior = LAW.prior()
    by_name = {p.name: p for p in PRIORS}
    parameters = tuple(
        replace(p, value=p.value * np.exp(by_name[p.name].log_sd * rng.standard_normal()))
        for p in prior.parameters
        if p.name in by_name
    )
    covariance = np.asarray(prior.log_covariance)[: len(parameters), : len(parameters)]
    return replace(
        prior, parameters=parameters, log_covariance=tuple(map(tuple, covariance.tolist()))
    )


def points(batch: list[float], model: object = SMALL, output_tokens: float = 200) -> Points:
    one = Points.of(model, GPU, input_tokens=300, output_tokens=output_tokens, batch=batch)  # type: ignore[arg-type]
    size = len(batch)
    return replace(
        one,
        model_index=np.zeros(size, dtype=np.int64),
        hardware_index=np.zeros(size, dtype=np.int64),
        input_tokens=np.full(size, 300.0),
        output_tokens=np.full(size, output_tokens),
        tensor_parallel_size=np.ones(size),
    )


def measured(truth: Calibration, at: Points, rng: np.random.Generator) -> Observations:
    answer = predict(truth, at)
    noise = np.exp(NOISE * rng.standard_normal(at.shape))
    return Observations(
        at, answer.total_tokens_per_s * noise, answer.e2e_s / noise, np.arange(at.shape[0])
    )


def covered(fit: Calibration, runs: Observations) -> float:
    found = intervals(predict(fit, runs.points), spread(fit, runs.points))
    assert found is not None
    low, high = found["total_tokens_per_s"]
    return float(np.mean((runs.total_tokens_per_s >= low) & (runs.total_tokens_per_s <= high)))


def test_intervals_cover_engines_drawn_from_the_priors() -> None:
    rng = np.random.default_rng(7)
    seen, unseen = points([1, 8, 32, 128, 256]), points([2, 4, 16, 64, 96, 200])
    shares = []
    for _ in range(16):
        truth = drawn(rng)
        fit = LAW.fit(measured(truth, seen, rng))
        shares.append(covered(fit, measured(truth, unseen, rng)))
    assert 0.85 <= np.mean(shares) <= 0.99


@pytest.mark.parametrize("seen", [[1.0], [1.0, 128.0]])
@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_an_engine_unlike_the_priors_leaves_wide_intervals_after_few_rows(
    seen: list[float], factor: float
) -> None:
    rng = np.random.default_rng(17)
    usual = LAW.prior()
    strange = replace(
        usual,
        parameters=tuple(
            replace(p, value=p.value * (factor if p.unit == "s" else 1.0)) for p in usual.parameters
        ),
    )
    fits = [LAW.fit(measured(truth, points(seen), rng)) for truth in (usual, strange)]
    unseen = points([2, 4, 16, 64, 96, 200])
    assert covered(fits[1], measured(strange, unseen, rng)) == 1
    assert width(fits[1], unseen) > 1.2 * width(fits[0], unseen)


def width(fit: Calibration, at: Points) -> float:
    found = spread(fit, at)
    assert found is not None
    return float(np.max(found["e2e_s"].log_half_width(0.9)))


def test_measured_points_narrow_the_interval_and_what_was_not_measured_widens_it() -> None:
    rng = np.random.default_rng(3)
    fit = LAW.fit(measured(drawn(rng), points([1, 8, 32, 128]), rng))
    inside = width(fit, points([16]))
    assert inside < 0.6 * width(LAW.prior(), points([16]))
    assert inside < width(fit, points([16], model=LARGE))
    assert inside < width(fit, points([1000]))
    assert inside < width(fit, points([16], output_tokens=4000))


def test_an_accelerator_of_unknown_peaks_is_hardly_known_without_runs() -> None:
    known = points([16], model=LARGE)
    strange = replace(known, hardware=(UNKNOWN,))
    assert width(LAW.prior(), strange) > 1.5 * width(LAW.prior(), known)
    # A fit on known peaks knows nothing of those either.
    rng = np.random.default_rng(5)
    fit = LAW.fit(measured(drawn(rng), points([1, 8, 32, 128], model=LARGE), rng))
    assert width(fit, strange) > 2 * width(fit, known)


def test_another_makers_gpu_is_less_sure_until_one_was_measured() -> None:
    at = points([16])
    theirs = replace(at, hardware=(replace(GPU, name="theirs", vendor="AMD"),))
    prior = LAW.prior()
    assert width(prior, theirs) > 1.1 * width(prior, at)
    rng = np.random.default_rng(13)
    runs = replace(points([1, 8, 32, 128]), hardware=theirs.hardware)
    fit = LAW.fit(measured(drawn(rng), runs, rng))
    assert width(fit, theirs) < width(fit, at)


def test_peaks_of_unknown_accelerators_do_not_touch_known_ones() -> None:
    prior = LAW.prior()
    moved = replace(
        prior,
        parameters=tuple(
            replace(p, value=5 * p.value) if p.name.startswith("peak_") else p
            for p in prior.parameters
        ),
    )
    at = points([16])
    assert predict(moved, at).e2e_s == pytest.approx(predict(prior, at).e2e_s, rel=1e-12)


def test_groups_of_rows_that_the_rest_predicts_badly_inflate_the_variance() -> None:
    rng = np.random.default_rng(11)
    truth = drawn(rng)
    both = [measured(truth, points([1, 8, 32, 128], model=m), rng) for m in (SMALL, LARGE)]
    at = replace(
        both[0].points,
        models=(SMALL, LARGE),
        model_index=np.repeat([0, 1], 4),
        hardware_index=np.zeros(8, dtype=np.int64),
        **{
            name: np.tile(getattr(both[0].points, name), 2)
            for name in ("input_tokens", "output_tokens", "batch", "tensor_parallel_size")
        },
    )
    throughput = np.concatenate([b.total_tokens_per_s for b in both])
    slower = np.where(at.model_index == 1, 0.6, 1.0)

    def inflation(factor: np.ndarray) -> float:
        runs = Observations(at, throughput * factor, np.full(8, np.nan), np.arange(8))
        return LAW.fit(runs).discrepancies["model"].inflation

    assert inflation(slower) > 2 * inflation(np.ones(8))


def test_variances_known_equally_well_keep_their_degrees_of_freedom() -> None:
    only_noise = total_spread(np.zeros(1), 0.03, 6.0, {}, {"model": np.array(["a"])})
    assert only_noise.degrees_of_freedom == pytest.approx([6.0])
    with_factor = total_spread(
        np.zeros(1), 0.03, 6.0, {"model": Discrepancy(0.03, 1.0, 6.0)}, {"model": np.array(["a"])}
    )
    assert with_factor.log_sd == pytest.approx([0.03 * np.sqrt(2)])
    assert with_factor.degrees_of_freedom == pytest.approx([12.0])


def test_an_interval_of_a_given_spread_is_the_normal_one() -> None:
    sure = Spread(np.array([0.1]), np.array([np.inf]))
    assert sure.log_half_width(0.9) == pytest.approx([0.1 * 1.6449], rel=1e-3)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("batch", [0.5, 1.0, 50_000.0])
def test_one_output_token_has_no_tpot_and_yet_an_e2e(static: bool, batch: float) -> None:
    serving = Serving(
        static=np.array(static),
        chunked_prefill=np.full((), np.nan),
        max_num_batched_tokens=np.full((), np.nan),
        kv_capacity_tokens=np.full((), np.nan),
    )
    at = replace(points([batch], output_tokens=1), serving=serving)
    answer = predict(LAW.prior(), at)
    found = intervals(answer, spread(LAW.prior(), at))
    assert found is not None
    assert answer.e2e_s[0] == pytest.approx(answer.ttft_s[0])
    assert np.isnan(answer.tpot_s).all()
    assert np.isnan(found["tpot_s"]).all()
    assert found["e2e_s"][0][0] < answer.e2e_s[0] < found["e2e_s"][1][0]


def test_the_only_request_waits_for_all_of_its_prompt() -> None:
    """A time average of running requests is a little below its cap of 1."""
    whole = Serving(
        static=np.array(False),
        chunked_prefill=np.zeros(()),
        max_num_batched_tokens=np.full((), np.nan),
        kv_capacity_tokens=np.full((), np.nan),
    )
    idle, busy = (
        predict(LAW.prior(), replace(points([batch]), serving=whole)).ttft_s[0]
        for batch in (0.5, 1.0)
    )
    assert idle == pytest.approx(busy)
