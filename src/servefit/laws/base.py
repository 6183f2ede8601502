"""What every performance law offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from servefit.calibration import Calibration
from servefit.points import EngineSteps, FloatArray, Points

#: Which row label each observation carries (its position in the file it came from).
RowArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Observations:
    """Measured points; the arrays have one dimension, one entry a row.

    Attributes:
        points: what ran.
        total_tokens_per_s: measured throughput, input and output tokens (Eq. 6); NaN if unknown.
        e2e_s: measured time in service of one request, without queueing; NaN if unknown.
        rows: each observation's position in its file.
        ttft_s: measured time to first token in service, without queueing; NaN if unknown.
        tpot_s: measured (E2E - TTFT) / (output tokens - 1); NaN if unknown.
        itl_s: measured time between chunks of an answer; NaN if unknown.
    """

    points: Points
    total_tokens_per_s: FloatArray
    e2e_s: FloatArray
    rows: RowArray
    # Only baselines look at these; a scalar NaN stands for a whole unknown column.
    ttft_s: FloatArray = field(default_factory=lambda: np.array(np.nan))
    tpot_s: FloatArray = field(default_factory=lambda: np.array(np.nan))
    itl_s: FloatArray = field(default_factory=lambda: np.array(np.nan))


@dataclass(frozen=True)
class StepObservations:
    """Measured engine steps; the arrays have one dimension, one entry a row.

    Attributes:
        steps: what each step processed.
        step_time_s: how long it took.
        rows: each observation's position in its file.
        unusable: position in the file and reason of every row that could not be one.
    """

    steps: EngineSteps
    step_time_s: FloatArray
    rows: RowArray
    unusable: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Prediction:
    """A law's answer for some points; arrays have the points' shape.

    Attributes:
        batch: requests that run at once; below the points' own where that is a cap that something
            else undercuts.
        batch_limits: the batch that each limit allows, by its name, where the points' own is a
            cap; the least of them runs. NaN is unknown.
        terms_s: seconds of E2E by cause; they sum to ``e2e_s``.
        prefill_s, decode_s: time of the two phases.
        ttft_s: time to first token, without queueing.
        e2e_s: time of one request in service (of the whole batch, for a static one).
        tpot_s: (E2E - TTFT) / (output tokens - 1); NaN for one output token.
        total_tokens_per_s: batch x (input + output) / E2E (Eq. 6).
    """

    batch: FloatArray
    batch_limits: Mapping[str, FloatArray]
    terms_s: Mapping[str, FloatArray]
    prefill_s: FloatArray
    decode_s: FloatArray
    ttft_s: FloatArray
    e2e_s: FloatArray
    tpot_s: FloatArray
    total_tokens_per_s: FloatArray


@dataclass(frozen=True)
class Spread:
    """How far a new measurement may lie from a prediction.

    Attributes:
        log_sd: standard deviation of log(measured / predicted).
        degrees_of_freedom: how well that is known, for Student's t; infinite where it is given.
    """

    log_sd: FloatArray
    degrees_of_freedom: FloatArray

    def log_half_width(self, confidence: float) -> FloatArray:
        """Half the width, in logarithms, of the central ``confidence`` interval: t x sd."""
        from scipy.special import stdtrit

        # The normal quantile is that of Student's t from here on, to five digits.
        degrees = np.minimum(self.degrees_of_freedom, 1e6)
        return np.asarray(stdtrit(degrees, (1 + confidence) / 2) * self.log_sd)


class Law(Protocol):
    """A performance law: fitted on observations, then asked about points."""

    @property
    def name(self) -> str:
        """As on the command line."""

    def fit(self, observations: Observations | StepObservations) -> Calibration:
        """Calibrate on measurements.

        Raises:
            ServefitError: they do not suffice, or are of a kind that the law does not predict.
        """

    def prior(self) -> Calibration:
        """A calibration without any data; raises `ServefitError` with the reason if none exists."""

    def predict(self, calibration: Calibration, points: Points) -> Prediction:
        """Predict points."""

    def predict_steps(self, calibration: Calibration, steps: EngineSteps) -> FloatArray:
        """Seconds of single engine steps; raises `ServefitError` if the law has none."""

    def spread(self, calibration: Calibration, points: Points) -> dict[str, Spread] | None:
        """Spread of ``e2e_s``, ``ttft_s`` and ``tpot_s``; throughput shares that of ``e2e_s``.

        ``None`` where the fit left no residual degrees of freedom to estimate it from.
        """

    def steps_spread(self, calibration: Calibration, steps: EngineSteps) -> Spread | None:
        """Spread of the times of single engine steps; ``None`` as in `spread`."""
