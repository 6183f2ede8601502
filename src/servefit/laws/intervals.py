"""Prediction intervals."""

from __future__ import annotations

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.base import Prediction
from servefit.points import FloatArray

Interval = tuple[FloatArray, FloatArray]


def intervals(
    calibration: Calibration,
    prediction: Prediction,
    log_sd: dict[str, FloatArray] | None,
    confidence: float = 0.9,
) -> dict[str, Interval] | None:
    """Lower and upper end of the central ``confidence`` interval of one new measurement.

    value x exp(-/+ t sd), with Student's t for the fit's degrees of freedom and sd the standard
    deviation of the value's logarithm. Throughput shares the sd of E2E (Eq. 6).

    Args:
        calibration: the fit.
        prediction: its prediction for some points.
        log_sd: its `Law.log_sd` for the same points.
        confidence: between 0 and 1.

    Returns:
        ``total_tokens_per_s``, ``e2e_s``, ``ttft_s`` and ``tpot_s``; ``None`` where the spread is
        unknown.

    Raises:
        ServefitError: ``confidence`` is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ServefitError(f"confidence = {confidence:g}: must be between 0 and 1")
    if log_sd is None:
        return None
    from scipy.special import stdtrit

    quantile = float(stdtrit(calibration.degrees_of_freedom, (1 + confidence) / 2))
    values = {
        "total_tokens_per_s": (prediction.total_tokens_per_s, log_sd["e2e_s"]),
        "e2e_s": (prediction.e2e_s, log_sd["e2e_s"]),
        "ttft_s": (prediction.ttft_s, log_sd["ttft_s"]),
        "tpot_s": (prediction.tpot_s, log_sd["tpot_s"]),
    }
    return {
        name: (value * np.exp(-quantile * sd), value * np.exp(quantile * sd))
        for name, (value, sd) in values.items()
    }
