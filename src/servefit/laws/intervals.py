"""Prediction intervals."""

from __future__ import annotations

import numpy as np

from servefit.errors import ServefitError
from servefit.laws.base import Prediction, Spread
from servefit.points import FloatArray

Interval = tuple[FloatArray, FloatArray]


def intervals(
    prediction: Prediction,
    spread: dict[str, Spread] | None,
    confidence: float = 0.9,
) -> dict[str, Interval] | None:
    """Lower and upper end of the central ``confidence`` interval of one new measurement.

    value x exp(-/+ t sd), with sd the standard deviation of the value's logarithm and Student's t
    for its degrees of freedom. Throughput shares the sd of E2E (Eq. 6).

    Args:
        prediction: a law's prediction for some points.
        spread: its `Law.spread` for the same points.
        confidence: between 0 and 1.

    Returns:
        ``total_tokens_per_s``, ``e2e_s``, ``ttft_s`` and ``tpot_s``; ``None`` where the spread is
        unknown.

    Raises:
        ServefitError: ``confidence`` is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise ServefitError(f"confidence = {confidence:g}: must be between 0 and 1")
    if spread is None:
        return None
    width = {name: each.log_half_width(confidence) for name, each in spread.items()}
    values = {
        "total_tokens_per_s": (prediction.total_tokens_per_s, width["e2e_s"]),
        "e2e_s": (prediction.e2e_s, width["e2e_s"]),
        "ttft_s": (prediction.ttft_s, width["ttft_s"]),
        "tpot_s": (prediction.tpot_s, width["tpot_s"]),
    }
    return {name: (value * np.exp(-w), value * np.exp(w)) for name, (value, w) in values.items()}
