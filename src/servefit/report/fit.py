"""How good a fit is: predicted against measured, residuals, coverage, parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from servefit.calibration import Calibration
from servefit.laws import Observations, predict, spread
from servefit.laws.intervals import intervals
from servefit.laws.slim import PARAMETERS, Slim
from servefit.laws.step import StepLaw
from servefit.laws.step.parameters import PRIORS
from servefit.laws.support import fingerprint
from servefit.plain import to_plain
from servefit.points import BoolArray

#: Confidences of the central intervals whose coverage is counted.
COVERAGES = (0.5, 0.8, 0.9, 0.95)
#: The normal quantile of a central interval of 90 %.
Z = 1.645
#: Relative errors nearer than this are those of one run.
SAME_ERROR = 1e-9


@dataclass(frozen=True)
class Coverage:
    """``count`` of ``of`` measured throughputs lie in their central ``confidence`` intervals."""

    confidence: float
    count: int
    of: int


@dataclass(frozen=True)
class Goodness:
    """Measured runs against what the calibration predicts for them.

    Attributes:
        rows: one a run: row, model, batch, measured and predicted tokens/s, error in percent.
        mape_pct: mean absolute percentage error of throughput.
        coverage: of its intervals, by confidence; empty where these are unknown.
        unseen: how many of the runs the calibration was not fitted on.
    """

    rows: list[dict[str, Any]]
    mape_pct: float
    coverage: tuple[Coverage, ...]
    unseen: int


def goodness(calibration: Calibration, observations: Observations) -> Goodness:
    """Compare a calibration with runs, those that it was fitted on or others."""
    points, shape = observations.points, observations.rows.shape
    measured = observations.total_tokens_per_s
    answer = predict(calibration, points)
    error = np.broadcast_to(100 * (answer.total_tokens_per_s / measured - 1), shape)
    names = np.array([model.name for model in points.models])
    columns = {
        "row": observations.rows,
        "model": names[points.model_index],
        "batch": points.batch,
        "measured": measured,
        "predicted": answer.total_tokens_per_s,
        "error_pct": error,
    }
    lists = {k: to_plain(np.broadcast_to(v, shape)) for k, v in columns.items()}
    spreads = spread(calibration, points)
    covered = []
    for confidence in COVERAGES:
        ranges = intervals(answer, spreads, confidence)
        if ranges is None:
            break
        low, high = ranges["total_tokens_per_s"]
        inside = (low <= measured) & (measured <= high)
        covered.append(Coverage(confidence, int(inside.sum()), inside.size))
    return Goodness(
        rows=[dict(zip(lists, cells, strict=True)) for cells in zip(*lists.values(), strict=True)],
        mape_pct=float(np.mean(np.abs(error))),
        coverage=tuple(covered),
        unseen=int(np.count_nonzero(~in_fit(calibration, observations))),
    )


def in_fit(calibration: Calibration, observations: Observations) -> BoolArray:
    """Which runs the calibration was fitted on: those with the error of a training row.

    Row numbers do not tell: another choice of files or rows has others.
    """
    shape = observations.rows.shape
    if fingerprint(observations) == calibration.runs_fingerprint:
        return np.ones(shape, dtype=np.bool_)
    predicted = predict(calibration, observations.points).total_tokens_per_s
    error = np.broadcast_to(predicted / observations.total_tokens_per_s - 1, shape)
    # An error of p / m - 1 is a residual (m - p) / m.
    trained = np.array([residual.relative for residual in calibration.residuals])
    return np.asarray((np.abs(error[:, None] + trained) < SAME_ERROR).any(axis=1))


def residual_rows(calibration: Calibration) -> list[dict[str, Any]]:
    """Training errors that the calibration itself remembers: row, and percent of throughput.

    With r = (measured - predicted) / measured the error of the prediction is -100 r percent.
    """
    return [{"row": r.row, "error_pct": -100 * r.relative} for r in calibration.residuals]


def parameter_rows(calibration: Calibration) -> list[dict[str, Any]]:
    """Value, 90 % interval, what was allowed beforehand, and a remark for each parameter.

    The interval is even in logarithms, value x exp(-/+ 1.645 stderr / value), as the fit is.
    ``allowed`` is the 90 % range of the step law's prior, and the bounds of SLIM.
    """
    allowed = _allowed()
    rows = []
    for found in calibration.parameters:
        low = high = None
        if found.stderr is not None and found.value > 0:
            low, high = _range(found.value, found.stderr / found.value)
        remark = "" if found.identified else "not identified by these runs"
        if found.at_bound:
            remark = f"at its {found.at_bound} bound"
        rows.append(
            {
                "name": found.name,
                "unit": found.unit,
                "value": found.value,
                "low": low,
                "high": high,
                "allowed": allowed.get((calibration.law, found.name)),
                "remark": remark,
            }
        )
    return rows


def _allowed() -> dict[tuple[str, str], tuple[float, float]]:
    """By law and parameter."""
    step = {(StepLaw.name, p.name): _range(p.median, p.log_sd) for p in PRIORS}
    return step | {(Slim.name, p.name): (p.lower, p.upper) for p in PARAMETERS}


def _range(value: float, log_sd: float) -> tuple[float, float]:
    return value * math.exp(-Z * log_sd), value * math.exp(Z * log_sd)
