"""Maximum a posteriori calibration of the step law, and how far it can be trusted elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from servefit.calibration import Discrepancy
from servefit.laws.base import Spread
from servefit.laws.step.factors import PRIOR_GROUPS, PRIOR_LOG_SD, SIZES, Factors, left, seen
from servefit.laws.step.parameters import Prior, completed
from servefit.laws.step.physics import Theta, step_terms
from servefit.laws.step.work import Cost
from servefit.points import BoolArray, FloatArray, IntArray

#: Relative noise that a measurement is taken to have while fitting: repeats agree within 1-4 %.
ASSUMED_NOISE = 0.04
#: Prior of the residual spread: so many rows with this spread are taken as already seen.
NOISE_PRIOR_ROWS = 4.0
NOISE_PRIOR_SD = 0.03
#: A row counts for no more than this many standard deviations when the spread is estimated.
CLIPPED_AT = 4.5
#: Fits that leave rows out use at most this many.
MOST_ROWS = 400


@dataclass(frozen=True)
class Problem:
    """Measured times, and the steps that they are made of.

    Attributes:
        cost: cost of each kind of step at peak rates.
        row: which measurement each belongs to.
        count: how often it runs.
        measured_s: seconds, one entry a measurement.
        factors: see `servefit.laws.step.factors`.
    """

    cost: Cost
    row: IntArray
    count: FloatArray
    measured_s: FloatArray
    factors: Factors

    def predicted_s(self, theta: Theta) -> FloatArray:
        """Time of each measurement: the sum of count x S(step) over its steps."""
        seconds = sum(step_terms(completed(theta), self.cost).values(), start=np.zeros(()))
        return total_by_row(self.row, self.count * seconds, len(self.measured_s))

    def take(self, chosen: BoolArray) -> Problem:
        """The measurements where ``chosen`` is true."""
        steps = np.flatnonzero(chosen[self.row])
        renumber = np.cumsum(chosen) - 1
        return Problem(
            cost=Cost(*(getattr(self.cost, f.name)[steps] for f in fields(Cost))),
            row=renumber[self.row[steps]],
            count=self.count[steps],
            measured_s=self.measured_s[chosen],
            factors={name: values[chosen] for name, values in self.factors.items()},
        )


def total_by_row(row: IntArray, seconds: FloatArray, size: int) -> FloatArray:
    """Sum of ``seconds`` over the steps of each row."""
    return np.bincount(row, seconds, minlength=size).astype(np.float64)


@dataclass(frozen=True)
class Posterior:
    """A fit: log parameters, their covariance, and the spread of the residuals.

    Attributes:
        theta: parameter values by name.
        log_covariance: of the logarithms, in the priors' order.
        log_residuals: log(measured / predicted), one a measurement.
        noise: standard deviation of a measurement about the law.
    """

    theta: Theta
    log_covariance: FloatArray
    log_residuals: FloatArray
    noise: float


def maximum_a_posteriori(problem: Problem | None, priors: Sequence[Prior]) -> Posterior:
    """Minimise sum rho(log(predicted / measured) / noise) + sum z^2.

    rho is soft-L1, 2 (sqrt(1 + r^2) - 1), so that single bad rows pull little. z is the
    standardised log parameter, (log value - log median) / log_sd: the priors make the problem well
    posed from one measurement on, and answer it without any. The covariance is Laplace's,
    (J'J / s^2 + I)^-1, with the residual spread s estimated from the rows and `NOISE_PRIOR_SD`.
    n rows can move min(n, parameters) directions, each by a standard deviation or so if the priors
    are right. Where sum z^2 is more, the engine is not one that they describe, and the covariance
    grows by as much (Birge's ratio), for what the rows leave to the priors is as doubtful.
    """
    log_sd = np.array([p.log_sd for p in priors])
    z = np.zeros(len(priors))
    if problem is None or len(problem.measured_s) == 0:
        return Posterior(_theta(z, priors), np.diag(log_sd**2), np.zeros(0), NOISE_PRIOR_SD)
    from scipy.optimize import least_squares

    def log_ratio(z: FloatArray) -> FloatArray:
        return np.log(problem.predicted_s(_theta(z, priors)) / problem.measured_s)

    def residuals(z: FloatArray) -> FloatArray:
        r = log_ratio(z) / ASSUMED_NOISE
        return np.concatenate([np.sign(r) * np.sqrt(2 * (np.sqrt(1 + r * r) - 1)), z])

    z = least_squares(residuals, z, x_scale=1.0).x
    error = -log_ratio(z)
    noise = residual_spread(error)
    jacobian = gradient(log_ratio, z) / noise
    covariance = np.linalg.inv(jacobian.T @ jacobian + np.eye(len(z)))
    covariance *= max(1.0, float(z @ z) / min(len(error), len(z)))
    log_covariance = np.asarray(covariance * np.outer(log_sd, log_sd))
    return Posterior(_theta(z, priors), log_covariance, error, noise)


def _theta(z: FloatArray, priors: Sequence[Prior]) -> dict[str, float]:
    return {p.name: float(p.median * np.exp(p.log_sd * x)) for p, x in zip(priors, z, strict=True)}


def gradient(
    function: Callable[[FloatArray], FloatArray], at: FloatArray, step: float = 1e-4
) -> FloatArray:
    """Central differences, (..., p)."""
    columns = []
    for k in range(len(at)):
        shift = np.zeros(len(at))
        shift[k] = step
        columns.append((function(at + shift) - function(at - shift)) / (2 * step))
    return np.stack(columns, axis=-1)


def residual_spread(log_residuals: FloatArray) -> float:
    """Standard deviation of a measurement about the law, robust and never from rows alone.

    Squares are clipped at `CLIPPED_AT` prior standard deviations and pooled with the prior; from
    20 rows on at least what the 90 % quantile of their size implies for a normal law.
    """
    clip = CLIPPED_AT * NOISE_PRIOR_SD
    squares = np.sum(np.clip(log_residuals, -clip, clip) ** 2)
    pooled = (NOISE_PRIOR_ROWS * NOISE_PRIOR_SD**2 + squares) / (
        NOISE_PRIOR_ROWS + len(log_residuals)
    )
    spread = float(np.sqrt(pooled))
    if len(log_residuals) >= 20:
        spread = max(spread, float(np.quantile(np.abs(log_residuals), 0.9)) / 1.645)
    return spread


def discrepancies(problem: Problem, priors: Sequence[Prior]) -> dict[str, Discrepancy]:
    """How far the law is off on groups of rows left out of the fit, by factor.

    For each factor, every group (a model, a GPU, a degree of tensor parallelism, a way to batch;
    the longest and shortest third of lengths, the largest and smallest third of batches) is left
    out in turn and the law fitted on the rest. What its errors there exceed the noise by is
    compared with what was expected, the variance v of the parameters and `PRIOR_LOG_SD`^2 = d^2:

        inflation = (g0 + sum over groups of (error^2 - noise^2) / (v + d^2)) / (g0 + groups)

    with g0 = `PRIOR_GROUPS` groups that were as expected. A prediction that leaves a factor
    inflates both: parameters that a left-out group shows to be poorly told apart are better known
    once that group is in the fit. Only training rows are seen.
    """
    whole, size = problem, len(problem.measured_s)
    if size > MOST_ROWS:
        chosen = np.zeros(size, dtype=bool)
        chosen[:: -(-size // MOST_ROWS)] = True
        problem = problem.take(chosen)
    found = {}
    for name, prior_sd in PRIOR_LOG_SD.items():
        ratios = [
            _variance_ratio(problem, held_out, priors, prior_sd)
            for held_out in _groups(name, problem.factors[name])
            if held_out.sum() >= 2 and (~held_out).sum() >= 2
        ]
        groups = PRIOR_GROUPS + len(ratios)
        inflation = (PRIOR_GROUPS + sum(ratios)) / groups
        found[name] = seen(name, whole.factors[name], inflation, groups)
    return found


def spread(
    parameters: FloatArray,
    noise_sd: float,
    noise_degrees: float,
    discrepancies: Mapping[str, Discrepancy],
    factors: Factors,
) -> Spread:
    """All that separates a new measurement from its prediction, as independent variances.

    Parameters, noise, and the discrepancy of every factor that leaves what was seen add up; the
    latter inflates the parameters' variance too, see `discrepancies`. The sum of variances v_i,
    each known with nu_i degrees of freedom, has about (sum v_i)^2 / sum(v_i^2 / nu_i) of them
    (Welch 1947, Satterthwaite 1946); the parameters' own share rests on the priors and counts as
    given.

    Args:
        parameters: variance from the parameters' covariance, one entry a prediction.
        noise_sd, noise_degrees: spread of the residuals and how well it is known.
        discrepancies, factors: of the fit; of the predictions.
    """
    known = [(np.full(parameters.shape, noise_sd**2), noise_degrees)]
    for name in sorted(discrepancies.keys() & factors.keys()):
        each = discrepancies[name]
        beyond = each.log_sd**2 + max(each.inflation - 1, 0.0) * parameters
        known.append((np.where(left(each, factors[name]), beyond, 0.0), each.degrees_of_freedom))
    variance = parameters + sum(v for v, _ in known)
    return Spread(np.sqrt(variance), variance**2 / sum(v**2 / degrees for v, degrees in known))


def _groups(name: str, values: npt.NDArray[Any]) -> list[BoolArray]:
    if name not in SIZES:
        levels = np.unique(values)
        return [values == level for level in levels] if len(levels) > 1 else []
    if np.ptp(values) < np.log(1.5):
        return []
    low, high = np.quantile(values, [1 / 3, 2 / 3])
    return [values > high + 1e-9, values < low - 1e-9]


def _variance_ratio(
    problem: Problem, held_out: BoolArray, priors: Sequence[Prior], prior_sd: float
) -> float:
    """Squared log error beyond noise on the rows left out, over what the fit on the rest expects.

    The median square over 0.455, the median of chi-squared, is its robust mean.
    """
    fit = maximum_a_posteriori(problem.take(~held_out), priors)
    rest = problem.take(held_out)
    error = np.log(rest.measured_s / rest.predicted_s(fit.theta))
    variance = parameter_variance(rest.predicted_s, fit.theta, fit.log_covariance)
    beyond_noise = max(float(np.median(error**2)) / 0.455 - fit.noise**2, 0.0)
    return beyond_noise / (float(np.mean(variance)) + prior_sd**2)


def parameter_variance(
    seconds: Callable[[Theta], FloatArray], theta: Theta, log_covariance: FloatArray
) -> FloatArray:
    """Variance of log ``seconds(theta)`` from the parameters' covariance: g' Sigma g.

    NaN where there are no seconds.
    """
    names = list(theta)
    log_theta = np.log([theta[name] for name in names])

    def log_seconds(values: FloatArray) -> FloatArray:
        found = seconds(dict(zip(names, np.exp(values).tolist(), strict=True)))
        return np.log(found, out=np.full_like(found, np.nan), where=found > 0)

    g = gradient(log_seconds, log_theta)
    return np.asarray(np.einsum("...i,ij,...j->...", g, log_covariance, g))
