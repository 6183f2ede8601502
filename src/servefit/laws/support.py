"""Steps that the laws share."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

import servefit
from servefit.calibration import Calibration, Range, Residual, ranged_values
from servefit.errors import ServefitError
from servefit.fitting import Solution
from servefit.laws.base import Law, Observations, Prediction
from servefit.points import FloatArray, Points


def prediction(
    points: Points,
    *,
    terms_s: Mapping[str, FloatArray],
    prefill_s: FloatArray,
    decode_s: FloatArray,
    ttft_s: FloatArray,
) -> Prediction:
    """Complete a prediction: E2E is the sum of the terms, the rest follows.

    TPOT = T_dec / (OL - 1), NaN at one output token; T = B (IL + OL) / E2E (Eq. 6).
    """
    e2e_s = sum(terms_s.values(), start=np.zeros(()))
    gaps = points.output_tokens - 1
    with np.errstate(divide="ignore"):
        tpot_s = np.where(gaps > 0, decode_s / np.where(gaps > 0, gaps, 1), np.nan)
    tokens = points.batch * (points.input_tokens + points.output_tokens)
    return Prediction(
        terms_s=terms_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        tpot_s=tpot_s,
        total_tokens_per_s=tokens / e2e_s,
    )


def require_distinct_points(observations: Observations, *, minimum: int) -> None:
    """Refuse to fit on too few distinct points; raises `ServefitError`."""
    points = observations.points
    columns = (points.model_index, points.input_tokens, points.output_tokens, points.batch)
    distinct = len(np.unique(np.stack(np.broadcast_arrays(*columns), axis=-1), axis=0))
    if distinct < minimum:
        raise ServefitError(
            f"a fit needs at least {minimum} distinct points (model, lengths, batch), got "
            f"{distinct}: measure more batch sizes, or select more rows with --where"
        )


def calibration_of(
    law: Law, observations: Observations, solution: Solution, settings: Mapping[str, Any]
) -> Calibration:
    """A calibration with the account of its fit and of the runs it saw."""
    points = observations.points
    bare = Calibration(law=law.name, parameters=solution.parameters, settings=settings)
    predicted = law.predict(bare, points)
    covariance = solution.log_covariance
    return Calibration(
        law=law.name,
        parameters=solution.parameters,
        settings=settings,
        log_covariance=None if covariance is None else tuple(map(tuple, covariance.tolist())),
        residual_sd=solution.residual_sd,
        degrees_of_freedom=solution.degrees_of_freedom,
        residuals=tuple(
            Residual(int(row), float(relative))
            for row, relative in zip(observations.rows, solution.residuals, strict=True)
        ),
        train_mape_pct={
            "total_tokens_per_s": mape_pct(
                predicted.total_tokens_per_s, observations.total_tokens_per_s
            ),
            "e2e_s": mape_pct(predicted.e2e_s, observations.e2e_s),
        },
        models=points.models,
        hardware=points.hardware,
        ranges={
            name: Range(float(np.min(value)), float(np.max(value)))
            for name, value in ranged_values(points).items()
        },
        runs_fingerprint=fingerprint(observations),
        versions={
            "servefit": servefit.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": version("scipy"),
        },
        notes=_notes(solution),
    )


def _notes(solution: Solution) -> tuple[str, ...]:
    notes = []
    if solution.residual_sd is None:
        notes.append(
            f"{len(solution.residuals)} rows leave no residual degrees of freedom: standard "
            "errors and intervals are unknown"
        )
    free = [p.name for p in solution.parameters if not p.identified]
    if free:
        notes.append(
            f"not identified by these runs: {', '.join(free)}; their values are a tie-break "
            "(minimum norm), only their joint effect on these runs is known"
        )
    notes.extend(
        f"{p.name} is at its {p.at_bound} bound" for p in solution.parameters if p.at_bound
    )
    return tuple(notes)


def mape_pct(predicted: FloatArray, measured: FloatArray) -> float | None:
    """Mean absolute percentage error, 100 mean(|predicted / measured - 1|), over known values."""
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return None
    return float(100 * np.mean(np.abs(predicted[known] / measured[known] - 1)))


def propagate(
    calibration: Calibration, log_gradients: Mapping[str, FloatArray]
) -> dict[str, FloatArray] | None:
    """sqrt(g' Sigma g + s^2) for each quantity's gradient g = d log quantity / d log theta.

    Sigma is the covariance of the log parameters and s the residual spread of throughput, which
    is taken for the latencies too: nothing else was fitted.
    """
    if calibration.log_covariance is None or calibration.residual_sd is None:
        return None
    covariance = np.asarray(calibration.log_covariance)
    noise = calibration.residual_sd**2
    return {
        name: np.sqrt(np.einsum("...i,ij,...j->...", g, covariance, g) + noise)
        for name, g in log_gradients.items()
    }


def fingerprint(observations: Observations) -> str:
    """SHA-256 of the observations, independent of their order."""
    points = observations.points
    models = [points.models[i].name for i in np.broadcast_to(points.model_index, points.shape)]
    numbers = np.stack(
        np.broadcast_arrays(
            points.input_tokens,
            points.output_tokens,
            points.batch,
            points.tensor_parallel_size,
            observations.total_tokens_per_s,
        ),
        axis=-1,
    )
    lines = sorted(
        f"{model},{','.join(map(repr, row))}"
        for model, row in zip(models, numbers.tolist(), strict=True)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
