"""What the linear baselines share: they predict whole requests, and only from data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.base import Law, Observations, Spread, StepObservations
from servefit.laws.support import require_distinct_points, run_mape_pct, with_account
from servefit.parameters import FittedParameter
from servefit.points import EngineSteps, FloatArray, Points


class Baseline:
    """The parts of `servefit.laws.base.Law` that every baseline answers alike."""

    name: str

    def prior(self) -> Calibration:
        """A regression knows nothing without data: raises `ServefitError`."""
        raise ServefitError(f"{self.name}: has no prediction without data: it is a regression")

    def predict_steps(self, calibration: Calibration, steps: EngineSteps) -> FloatArray:
        """No baseline has step times: raises `ServefitError`."""
        raise ServefitError(self._no_steps())

    def steps_spread(self, calibration: Calibration, steps: EngineSteps) -> Spread | None:
        """No baseline has step times: raises `ServefitError`."""
        raise ServefitError(self._no_steps())

    def spread(self, calibration: Calibration, points: Points) -> dict[str, Spread] | None:
        """``None``: neither baseline states its uncertainty."""
        return None

    def _no_steps(self) -> str:
        return f"{self.name}: predicts whole requests, not the time of one engine step"

    def _runs(self, observations: Observations | StepObservations) -> Observations:
        """The observations, if they are runs and enough; raises `ServefitError`."""
        if not isinstance(observations, Observations):
            raise ServefitError(self._no_steps())
        require_distinct_points(observations, minimum=2)
        return observations


def accounted(law: Law, bare: Calibration, observations: Observations) -> Calibration:
    """The calibration with its errors on the rows behind it."""
    answer = law.predict(bare, observations.points)
    measured = observations.total_tokens_per_s
    relative = 1 - np.broadcast_to(answer.total_tokens_per_s, measured.shape) / measured
    account = with_account(bare, observations, relative, run_mape_pct(answer, observations))
    degrees = len(observations.rows) - len(bare.parameters)
    return replace(account, degrees_of_freedom=max(degrees, 0))


def least_squares(features: FloatArray, target: FloatArray) -> FloatArray:
    """Ordinary least squares, (n, k) and (n,) to (k,); minimum norm where it is not unique.

    Columns are scaled to a largest entry of 1 first, so that the norm does not depend on units.
    """
    scale = np.abs(features).max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return np.asarray(np.linalg.lstsq(features / scale, target)[0] / scale)


def coefficients(names: Sequence[str], values: FloatArray) -> tuple[FittedParameter, ...]:
    """Regression coefficients as parameters; their sign is free and no error is stated."""
    return tuple(
        FittedParameter(name, "s", float(value)) for name, value in zip(names, values, strict=True)
    )
