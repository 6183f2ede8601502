"""Non-linear least squares on log parameters, with an honest account of what was determined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from servefit.parameters import FittedParameter, Parameter
from servefit.points import FloatArray

#: Weight of the pull towards the reference values: it only breaks ties (minimum norm).
TIE_BREAK = 1e-4
#: Log standard deviation given to a direction that the runs leave free: a factor of 20.
FREE_LOG_SD = 3.0
#: A parameter whose relative standard error exceeds this is not identified.
IDENTIFIED_BELOW = 1.0
#: Closer to a bound than this, on the log scale, is at it.
BOUND_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Solution:
    """A fit's result.

    Attributes:
        parameters: values with their standard errors.
        log_covariance: covariance of the log parameters, (p, p); ``None`` without residual
            degrees of freedom.
        residuals: relative residuals (measured - predicted) / measured, (n,).
        residual_sd: their standard deviation for the degrees of freedom; ``None`` if there are
            none.
        degrees_of_freedom: rows minus parameters that the rows determined.
    """

    parameters: tuple[FittedParameter, ...]
    log_covariance: FloatArray | None
    residuals: FloatArray
    residual_sd: float | None
    degrees_of_freedom: int


def fit_relative(
    parameters: Sequence[Parameter],
    starts: Sequence[FloatArray],
    ratio: Callable[[FloatArray], FloatArray],
    log_gradient: Callable[[FloatArray], FloatArray],
) -> Solution:
    """Minimise sum(((measured - predicted) / measured)^2) over the parameters' logarithms.

    Directions that the data leave free are settled by the pull towards the parameters' reference
    values (the minimum-norm solution about them, weight `TIE_BREAK`).

    Args:
        parameters: the p parameters with bounds.
        starts: parameter vectors to start from; the best end is kept, the first among equals.
        ratio: predicted / measured, (n,), at a parameter vector.
        log_gradient: d log predicted / d log parameter, (n, p), at a parameter vector.
    """
    from scipy.optimize import least_squares

    lower = np.log([p.lower for p in parameters])
    upper = np.log([p.upper for p in parameters])
    reference = np.log([p.reference for p in parameters])
    tie = TIE_BREAK * np.eye(len(parameters))

    def residuals(phi: FloatArray) -> FloatArray:
        return np.concatenate([1 - ratio(np.exp(phi)), TIE_BREAK * (phi - reference)])

    def jacobian(phi: FloatArray) -> FloatArray:
        theta = np.exp(phi)
        return np.vstack([-ratio(theta)[:, None] * log_gradient(theta), tie])

    best = None
    for start in starts:
        inside = np.clip(np.log(start), lower + 1e-6, upper - 1e-6)
        result = least_squares(
            residuals, inside, jac=jacobian, bounds=(lower, upper), x_scale="jac", max_nfev=200
        )
        if best is None or result.cost < best.cost * (1 - 1e-6):
            best = result
    if best is None:
        raise ValueError("fit_relative: needs at least one start")
    theta = np.exp(best.x)
    rows = len(best.fun) - len(parameters)
    return _account(parameters, theta, best.fun[:rows], jacobian(best.x)[:rows], lower, upper)


def _account(
    parameters: Sequence[Parameter],
    theta: FloatArray,
    residuals: FloatArray,
    jacobian: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
) -> Solution:
    """Standard errors, bounds and identifiability at the solution."""
    phi = np.log(theta)
    at_lower = phi - lower < BOUND_TOLERANCE
    at_upper = upper - phi < BOUND_TOLERANCE
    free = ~(at_lower | at_upper)
    _, singular, directions = np.linalg.svd(jacobian[:, free], full_matrices=True)
    padded = np.zeros(directions.shape[0])
    padded[: len(singular)] = singular
    determined = padded > 1e-6 * max(padded.max(initial=0.0), 1e-300)
    degrees = len(residuals) - int(determined.sum())
    sd = float(np.sqrt(residuals @ residuals / degrees)) if degrees > 0 else None

    stderr: list[float | None] = [None] * len(parameters)
    identified = [bool(f) for f in ~free]  # a bound determines its parameter
    covariance = None
    if sd is not None:
        precision = (padded / max(sd, 1e-12)) ** 2 + FREE_LOG_SD**-2
        block = (directions.T / precision) @ directions
        covariance = np.zeros((len(parameters), len(parameters)))
        covariance[np.ix_(free, free)] = block
    loose = directions[~determined] ** 2
    for local, index in enumerate(np.flatnonzero(free)):
        in_null_space = loose.size > 0 and float(loose[:, local].max()) > 1e-4
        log_sd = None if covariance is None else float(np.sqrt(covariance[index, index]))
        identified[index] = not in_null_space and (log_sd is None or log_sd < IDENTIFIED_BELOW)
        if identified[index] and log_sd is not None:
            stderr[index] = float(theta[index]) * log_sd
    fitted = tuple(
        FittedParameter(
            name=p.name,
            unit=p.unit,
            value=float(theta[i]),
            stderr=stderr[i],
            at_bound="lower" if at_lower[i] else "upper" if at_upper[i] else None,
            identified=identified[i],
        )
        for i, p in enumerate(parameters)
    )
    return Solution(fitted, covariance, residuals, sd, degrees)
