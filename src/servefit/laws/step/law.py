"""The engine-step law as `servefit.laws` offers it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.laws.base import Observations, Prediction, Spread, StepObservations
from servefit.laws.step.factors import (
    Factors,
    factors_of_points,
    factors_of_steps,
    nothing_seen,
)
from servefit.laws.step.parameters import PRIORS, UNKNOWN_PEAKS, Prior, completed
from servefit.laws.step.physics import Theta, step_terms
from servefit.laws.step.posterior import (
    NOISE_PRIOR_ROWS,
    Posterior,
    Problem,
    discrepancies,
    maximum_a_posteriori,
    parameter_variance,
    spread,
    total_by_row,
)
from servefit.laws.step.running import flatten
from servefit.laws.step.schedule import engine_steps, run_schedule
from servefit.laws.step.work import Cost, Steps, concatenate, cost_of
from servefit.laws.support import (
    mape_pct,
    prediction,
    require_parameters,
    run_mape_pct,
    with_account,
)
from servefit.parameters import FittedParameter
from servefit.points import EngineSteps, FloatArray, Points

#: A posterior at least this much of the prior's width says that the runs told next to nothing.
FROM_THE_PRIOR = 0.9


@dataclass(frozen=True)
class StepLaw:
    """The law as `servefit.laws` offers it.

    Attributes:
        priors: of the parameters; other ones serve ablations and cross-checks.
    """

    priors: tuple[Prior, ...] = PRIORS
    name: str = "step"

    def fit(self, observations: Observations | StepObservations) -> Calibration:
        """Maximum a posteriori on whole runs or on single steps.

        Raises:
            ServefitError: accelerators with known and with unknown peaks are mixed.
        """
        seen = observations.points if isinstance(observations, Observations) else observations.steps
        problem = _problem(observations)
        peaks_known = _peaks_known(seen.hardware)
        priors = self.priors if peaks_known else (*self.priors, *UNKNOWN_PEAKS)
        posterior = maximum_a_posteriori(problem, priors)
        calibration = replace(
            self._calibration(posterior, priors),
            discrepancies=discrepancies(problem, priors),
        )
        relative = 1 - np.exp(-posterior.log_residuals)
        if isinstance(observations, Observations):
            # Of throughput: (T - T_pred) / T, where T is inverse to the seconds that were fitted.
            relative = 1 - np.exp(posterior.log_residuals)
            errors = run_mape_pct(self.predict(calibration, observations.points), observations)
        else:
            predicted_s = problem.predicted_s(posterior.theta)
            errors = {"step_time_s": mape_pct(predicted_s, observations.step_time_s)}
        return with_account(calibration, observations, relative, errors)

    def prior(self) -> Calibration:
        """The priors alone, with their covariance."""
        priors = (*self.priors, *UNKNOWN_PEAKS)
        calibration = self._calibration(maximum_a_posteriori(None, priors), priors)
        return replace(
            calibration,
            discrepancies=nothing_seen(),
            notes=("no run was measured: every parameter is its prior",),
        )

    def _calibration(self, posterior: Posterior, priors: Sequence[Prior]) -> Calibration:
        log_sd = np.sqrt(np.diag(posterior.log_covariance))
        parameters = tuple(
            FittedParameter(
                name=prior.name,
                unit=prior.unit,
                value=posterior.theta[prior.name],
                stderr=posterior.theta[prior.name] * float(sd),
                identified=bool(sd < FROM_THE_PRIOR * prior.log_sd),
            )
            for prior, sd in zip(priors, log_sd, strict=True)
        )
        return Calibration(
            law=self.name,
            parameters=parameters,
            log_covariance=tuple(map(tuple, posterior.log_covariance.tolist())),
            residual_sd=posterior.noise,
            degrees_of_freedom=int(NOISE_PRIOR_ROWS) + len(posterior.log_residuals),
        )

    def predict(self, calibration: Calibration, points: Points) -> Prediction:
        """Sum of count x S(step) over each point's schedule."""
        flat, serving = flatten(points)
        schedule = run_schedule(flat, serving)
        theta, _ = _parameters(calibration, points.hardware)
        first = _terms(theta, schedule.first, flat)
        rest = _terms(theta, schedule.rest, flat)
        first_s, rest_s = (sum(terms.values(), start=np.zeros(())) for terms in (first, rest))

        def shaped(values: FloatArray) -> FloatArray:
            return values.reshape(points.shape)

        return prediction(
            points,
            batch=shaped(schedule.batch),
            batch_limits={name: shaped(limit) for name, limit in schedule.limits.items()},
            terms_s={name: shaped(first[name] + rest[name]) for name in first},
            prefill_s=shaped(first_s),
            decode_s=shaped(rest_s),
            ttft_s=shaped(first_s),
        )

    def predict_steps(self, calibration: Calibration, steps: EngineSteps) -> FloatArray:
        """S of single steps."""
        work = engine_steps(steps)
        theta, _ = _parameters(calibration, steps.hardware)
        terms = step_terms(completed(theta), _cost(work, steps))
        return sum(terms.values(), start=np.zeros(()))

    def spread(self, calibration: Calibration, points: Points) -> dict[str, Spread]:
        """Parameters, noise and discrepancies, see `servefit.laws.step.posterior.spread`."""
        flat, serving = flatten(points)
        schedule = run_schedule(flat, serving)
        costs = [(steps, _cost(steps, flat)) for steps in (schedule.first, schedule.rest)]
        size = len(flat.batch)

        def seconds(part: int) -> Callable[[Theta], FloatArray]:
            steps, cost = costs[part]
            return lambda theta: _total_s(theta, steps, cost, size)

        first, rest = seconds(0), seconds(1)
        quantities: dict[str, Callable[[Theta], FloatArray]] = {
            "e2e_s": lambda theta: first(theta) + rest(theta),
            "ttft_s": first,
            "tpot_s": rest,
        }
        factors = factors_of_points(flat, serving)
        found = {
            name: _spread(calibration, points.hardware, f, factors)
            for name, f in quantities.items()
        }
        return {
            name: Spread(
                each.log_sd.reshape(points.shape), each.degrees_of_freedom.reshape(points.shape)
            )
            for name, each in found.items()
        }

    def steps_spread(self, calibration: Calibration, steps: EngineSteps) -> Spread:
        """The same for single steps."""
        work = engine_steps(steps)
        cost, size = _cost(work, steps), len(steps.prefill_tokens)
        return _spread(
            calibration,
            steps.hardware,
            lambda theta: _total_s(theta, work, cost, size),
            factors_of_steps(steps),
        )


def _spread(
    calibration: Calibration,
    hardware: Sequence[Hardware],
    seconds: Callable[[Theta], FloatArray],
    factors: Factors,
) -> Spread:
    return spread(
        parameter_variance(seconds, *_parameters(calibration, hardware)),
        calibration.residual_sd or 0.0,
        calibration.degrees_of_freedom,
        calibration.discrepancies,
        factors,
    )


def _problem(observations: Observations | StepObservations) -> Problem:
    if isinstance(observations, StepObservations):
        steps = observations.steps
        work = engine_steps(steps)
        return Problem(
            cost=_cost(work, steps),
            row=work.row,
            count=work.count,
            measured_s=observations.step_time_s,
            factors=factors_of_steps(steps),
        )
    flat, serving = flatten(observations.points)
    schedule = run_schedule(flat, serving)
    work = concatenate([schedule.first, schedule.rest])
    tokens = schedule.batch * (flat.input_tokens + flat.output_tokens)
    return Problem(
        cost=_cost(work, flat),
        row=work.row,
        count=work.count,
        measured_s=tokens / observations.total_tokens_per_s,
        factors=factors_of_points(flat, serving),
    )


def _cost(work: Steps, seen: Points | EngineSteps) -> Cost:
    return cost_of(
        work,
        seen.models,
        seen.hardware,
        seen.model_index,
        seen.hardware_index,
        seen.tensor_parallel_size,
    )


def _peaks_known(hardware: Sequence[Hardware]) -> bool:
    """Whether the accelerators' peaks are; raises `ServefitError` where only some are."""
    known = {h.has_known_peaks for h in hardware}
    if len(known) > 1:
        raise ServefitError(
            "step: some rows name a GPU with known peaks and some do not: take them apart, or say "
            "what the unknown GPU is"
        )
    return known == {True}


def _parameters(
    calibration: Calibration, hardware: Sequence[Hardware]
) -> tuple[dict[str, float], FloatArray]:
    """Values, and covariance of their logarithms, that apply to some accelerators.

    Factors on nominal peaks are for unknown accelerators only; a fit that has not seen one knows
    them by their priors.

    Raises:
        ServefitError: the calibration is damaged; known and unknown accelerators are mixed.
    """
    peaks = {p.name: p for p in UNKNOWN_PEAKS}
    names = [p.name for p in PRIORS]
    blind = len(calibration.parameters) > len(names)
    require_parameters(calibration, [*names, *peaks] if blind else names)
    if calibration.log_covariance is None:
        raise ServefitError("step: the calibration lacks its covariance: fit again")
    fitted = {p.name: p.value for p in calibration.parameters}
    covariance = np.asarray(calibration.log_covariance)
    kept = [i for i, name in enumerate(fitted) if name not in peaks]
    if _peaks_known(hardware):
        names = list(fitted)
        return {names[i]: fitted[names[i]] for i in kept}, covariance[np.ix_(kept, kept)]
    added = [p for name, p in peaks.items() if name not in fitted]
    if not added:
        return fitted, covariance
    whole = np.zeros((len(fitted) + len(added),) * 2)
    whole[: len(fitted), : len(fitted)] = covariance
    whole[range(len(fitted), len(whole)), range(len(fitted), len(whole))] = [
        p.log_sd**2 for p in added
    ]
    return fitted | {p.name: p.median for p in added}, whole


def _terms(theta: Theta, steps: Steps, flat: Points) -> dict[str, FloatArray]:
    """Seconds of each point by cause, over all of its steps."""
    size = len(flat.batch)
    return {
        name: total_by_row(steps.row, steps.count * seconds, size)
        for name, seconds in step_terms(completed(theta), _cost(steps, flat)).items()
    }


def _total_s(theta: Theta, steps: Steps, cost: Cost, size: int) -> FloatArray:
    seconds = sum(step_terms(completed(theta), cost).values(), start=np.zeros(()))
    return total_by_row(steps.row, steps.count * seconds, size)
