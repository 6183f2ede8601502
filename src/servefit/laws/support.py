"""Steps that the laws share."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

import servefit
from servefit.calibration import Calibration, Range, Residual, ranged_values
from servefit.errors import ServefitError
from servefit.laws.base import Observations, Prediction, Spread, StepObservations
from servefit.laws.features import SCHEDULING, features_of, left_out
from servefit.points import EngineSteps, FloatArray, Points


def prediction(
    points: Points,
    *,
    batch: FloatArray | None = None,
    batch_limits: Mapping[str, FloatArray] | None = None,
    terms_s: Mapping[str, FloatArray],
    prefill_s: FloatArray,
    decode_s: FloatArray,
    ttft_s: FloatArray,
) -> Prediction:
    """Complete a prediction: E2E is the sum of the terms, the rest follows.

    TPOT = T_dec / (OL - 1), NaN at one output token; T = B (IL + OL) / E2E (Eq. 6), with the batch
    that runs where it is not the points' own.
    """
    running = points.batch if batch is None else batch
    e2e_s = sum(terms_s.values(), start=np.zeros(()))
    gaps = points.output_tokens - 1
    with np.errstate(divide="ignore"):
        tpot_s = np.where(gaps > 0, decode_s / np.where(gaps > 0, gaps, 1), np.nan)
    tokens = running * (points.input_tokens + points.output_tokens)
    return Prediction(
        batch=running,
        batch_limits=batch_limits or {},
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


def require_parameters(
    calibration: Calibration, names: Sequence[str], *, signed: bool = False
) -> None:
    """Refuse a calibration whose parameters are not these, in this order.

    Raises:
        ServefitError: they are not, or one is negative and not ``signed``: the file was edited, or
            another version wrote it.
    """
    found = [p.name for p in calibration.parameters]
    if found != list(names):
        raise ServefitError(
            f"{calibration.law}: the calibration holds the parameters {', '.join(found) or 'none'} "
            f"where the law has {', '.join(names)}: fit again"
        )
    for p in calibration.parameters:
        if p.value < 0 and not signed:
            raise ServefitError(
                f"{calibration.law}: the calibration's {p.name} = {p.value:g} must not be "
                "negative: fit again"
            )


def setting(calibration: Calibration, name: str, kind: Any, default: Any = None) -> Any:
    """What a law's fit noted as ``name``, of the type ``kind``, or the default.

    Raises:
        ServefitError: it is not of that type (``None`` is one only where ``kind`` has it).
    """
    value = calibration.settings.get(name, default)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ServefitError(
            f"{calibration.law}: the calibration's setting {name} = {value!r} is damaged "
            f"({error}): fit again"
        ) from None


def with_account(
    calibration: Calibration,
    observations: Observations | StepObservations,
    relative_residuals: FloatArray,
    train_mape_pct: Mapping[str, float | None],
) -> Calibration:
    """A calibration with the account of what it was fitted on.

    Args:
        calibration: the bare fit.
        observations: the rows behind it.
        relative_residuals: (measured - predicted) / measured, one a row.
        train_mape_pct: errors on these rows, by quantity.
    """
    if isinstance(observations, Observations):
        seen: Points | EngineSteps = observations.points
        ranged = ranged_values(observations.points)
    else:
        seen = observations.steps
        ranged = {"tensor_parallel_size": seen.tensor_parallel_size}
    features = features_of(seen)
    return replace(
        calibration,
        # Rows say how they were scheduled whether it matters or not: that is no news.
        notes=(*calibration.notes, *left_out(calibration.law, features - set(SCHEDULING))),
        residuals=tuple(
            Residual(int(row), float(relative))
            for row, relative in zip(observations.rows, relative_residuals, strict=True)
        ),
        train_mape_pct=train_mape_pct,
        models=seen.models,
        hardware=seen.hardware,
        features=tuple(sorted(features)),
        ranges={
            name: Range(float(np.min(value)), float(np.max(value)))
            for name, value in ranged.items()
        },
        runs_fingerprint=fingerprint(observations),
        versions={
            "servefit": servefit.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": version("scipy"),
        },
    )


def run_mape_pct(predicted: Prediction, observations: Observations) -> dict[str, float | None]:
    """MAPE on throughput and on E2E."""
    return {
        "total_tokens_per_s": mape_pct(
            predicted.total_tokens_per_s, observations.total_tokens_per_s
        ),
        "e2e_s": mape_pct(predicted.e2e_s, observations.e2e_s),
    }


def mape_pct(predicted: FloatArray, measured: FloatArray) -> float | None:
    """Mean absolute percentage error, 100 mean(|predicted / measured - 1|), over known values."""
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return None
    return float(100 * np.mean(np.abs(predicted[known] / measured[known] - 1)))


def propagate(
    calibration: Calibration, log_gradients: Mapping[str, FloatArray]
) -> dict[str, Spread] | None:
    """sqrt(g' Sigma g + s^2) for each quantity's gradient g = d log quantity / d log theta.

    Sigma is the covariance of the log parameters and s the residual spread of throughput, which
    is taken for the latencies too: nothing else was fitted.
    """
    if calibration.log_covariance is None or calibration.residual_sd is None:
        return None
    covariance = np.asarray(calibration.log_covariance)
    noise = calibration.residual_sd**2
    degrees = np.asarray(float(calibration.degrees_of_freedom))
    return {
        name: Spread(np.sqrt(np.einsum("...i,ij,...j->...", g, covariance, g) + noise), degrees)
        for name, g in log_gradients.items()
    }


def fingerprint(observations: Observations | StepObservations) -> str:
    """SHA-256 of the observations, independent of their order."""
    if isinstance(observations, Observations):
        points = observations.points
        seen: Points | EngineSteps = points
        numbers = [points.input_tokens, points.output_tokens, points.batch]
        numbers += [observations.total_tokens_per_s]
    else:
        steps = observations.steps
        seen = steps
        numbers = [steps.prefill_tokens, steps.prefill_requests, steps.prefill_kv_tokens]
        numbers += [steps.decode_requests, steps.decode_context_tokens, observations.step_time_s]
    numbers += [seen.tensor_parallel_size]
    models = [seen.models[i].name for i in seen.model_index]
    table = np.stack(np.broadcast_arrays(*numbers), axis=-1).tolist()
    lines = sorted(
        f"{model},{','.join(map(repr, row))}" for model, row in zip(models, table, strict=True)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
