"""Score laws on rows that they have not seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.laws import Law, StepObservations, predict, spread
from servefit.laws.intervals import Interval, intervals
from servefit.laws.support import mape_pct
from servefit.observations import (
    BatchFrom,
    ContextFrom,
    Observed,
    observe,
    observe_steps,
)
from servefit.points import FloatArray
from servefit.runs.table import RunTable

Mask = npt.NDArray[np.bool_]

#: Confidence of the intervals whose coverage is counted.
CONFIDENCE = 0.9


@dataclass(frozen=True)
class RowScore:
    """One tested run: its position in the file, and predicted against measured.

    ``low_tokens_per_s`` and ``high_tokens_per_s`` are the ends of the 90 % interval.
    """

    row: int
    model: str
    input_tokens: float
    output_tokens: float
    batch: float
    measured_tokens_per_s: float
    predicted_tokens_per_s: float
    low_tokens_per_s: float | None
    high_tokens_per_s: float | None
    error_pct: float
    measured_e2e_s: float | None
    predicted_e2e_s: float


@dataclass(frozen=True)
class StepScore:
    """One tested engine step: its position in the file, and predicted against measured."""

    row: int
    model: str
    tensor_parallel_size: float
    prefill_tokens: float
    decode_requests: float
    decode_context_tokens: float
    measured_s: float
    predicted_s: float
    low_s: float | None
    high_s: float | None
    error_pct: float


@dataclass(frozen=True)
class Coverage:
    """How many measurements lie in their intervals.

    Attributes:
        count, of: so many of so many.
        low, high: what a binomial law of the intervals' confidence allows in 95 % of cases.
    """

    count: int
    of: int
    low: int
    high: int

    @property
    def pct(self) -> float:
        """Share in percent."""
        return 100 * self.count / self.of


@dataclass(frozen=True)
class Score:
    """How a law did.

    Attributes:
        throughput_mape_pct, e2e_mape_pct: over the tested rows; ``None`` with a ``reason`` where
            the law could not predict, or where no tested row carries the quantity.
        n_train, n_test: rows trained on and tested.
        calibration: the fit, if there was one.
        coverage: of the law's 90 % intervals of throughput, or of step time; ``None`` where it
            gives none.
        rows: each tested row.
        unusable: rows selected for training or testing that lack what a law needs, with reasons.
        step_time_mape_pct: ``None`` for tables of runs.
    """

    law: str
    throughput_mape_pct: float | None
    e2e_mape_pct: float | None
    n_train: int
    n_test: int
    step_time_mape_pct: float | None = None
    calibration: Calibration | None = None
    coverage: Coverage | None = None
    rows: tuple[RowScore, ...] | tuple[StepScore, ...] = ()
    unusable: tuple[tuple[int, str], ...] = ()
    reason: str | None = None


def evaluate(
    table: RunTable,
    law: Law,
    *,
    train: Mask | None,
    test: Mask,
    batch_from: BatchFrom = "mean_batch",
    context_from: ContextFrom = "lengths",
    gpu: Hardware | None = None,
) -> Score:
    """Fit ``law`` on the train rows and score it on the test rows.

    MAPE = 100 mean(|predicted / measured - 1|), on total throughput and on E2E. Rows trained on
    are never tested, whatever ``test`` says.

    Args:
        table: a table of runs or of engine steps; SLIM has no step times.
        law: the law.
        train: rows to fit on; ``None`` asks the law for its prediction without data.
        test: rows to test.
        batch_from, context_from, gpu: what the law is given, see `servefit.observations.observe`.

    Raises:
        ServefitError: no row to train on or to test.
    """
    if train is not None:
        if not train.any():
            raise ServefitError("no row is selected for training: check --where and --train")
        test = test & ~train
    if not test.any():
        raise ServefitError(
            "no row is left to test: --test selects nothing that was not trained on"
        )
    if table.kind == "steps":
        return _evaluate_steps(table, law, train, test, gpu)
    tested = observe(
        table.frame.filter(pl.Series(test)),
        batch_from=batch_from,
        context_from=context_from,
        gpu=gpu,
    )
    trained = None
    if train is not None:
        trained = observe(
            table.frame.filter(pl.Series(train)),
            batch_from=batch_from,
            context_from=context_from,
            gpu=gpu,
        )
    unusable = tested.unusable + (trained.unusable if trained else ())
    score = Score(
        law=law.name,
        throughput_mape_pct=None,
        e2e_mape_pct=None,
        n_train=len(trained.observations.rows) if trained else 0,
        n_test=len(tested.observations.rows),
        unusable=unusable,
    )
    measured = tested.observations
    try:
        calibration = law.fit(trained.observations) if trained else law.prior()
        predicted = predict(calibration, measured.points)
        known = spread(calibration, measured.points)
    except ServefitError as error:
        return replace(score, reason=str(error))
    found = intervals(predicted, known, CONFIDENCE)
    interval = None if found is None else found["total_tokens_per_s"]
    return replace(
        score,
        throughput_mape_pct=mape_pct(predicted.total_tokens_per_s, measured.total_tokens_per_s),
        e2e_mape_pct=mape_pct(predicted.e2e_s, measured.e2e_s),
        calibration=calibration,
        coverage=_coverage(measured.total_tokens_per_s, interval),
        rows=_row_scores(tested, predicted.total_tokens_per_s, predicted.e2e_s, interval),
    )


def _evaluate_steps(
    table: RunTable, law: Law, train: Mask | None, test: Mask, gpu: Hardware | None
) -> Score:
    """Score single engine steps: MAPE of the step time."""
    tested = observe_steps(table.frame.filter(pl.Series(test)), gpu=gpu)
    trained = None
    if train is not None:
        trained = observe_steps(table.frame.filter(pl.Series(train)), gpu=gpu)
    score = Score(
        law=law.name,
        throughput_mape_pct=None,
        e2e_mape_pct=None,
        n_train=len(trained.rows) if trained else 0,
        n_test=len(tested.rows),
        unusable=tested.unusable + (trained.unusable if trained else ()),
    )
    try:
        calibration = law.fit(trained) if trained else law.prior()
        predicted_s = law.predict_steps(calibration, tested.steps)
        known = law.steps_spread(calibration, tested.steps)
    except ServefitError as error:
        return replace(score, reason=str(error))
    width = None if known is None else known.log_half_width(CONFIDENCE)
    interval = (
        None if width is None else (predicted_s * np.exp(-width), predicted_s * np.exp(width))
    )
    return replace(
        score,
        step_time_mape_pct=mape_pct(predicted_s, tested.step_time_s),
        calibration=calibration,
        coverage=_coverage(tested.step_time_s, interval),
        rows=_step_scores(tested, predicted_s, interval),
    )


def _coverage(measured: FloatArray, interval: Interval | None) -> Coverage | None:
    """How many of the known measurements lie in their intervals."""
    from scipy.special import bdtrik

    known = np.isfinite(measured)
    of = int(known.sum())
    if interval is None or of == 0:
        return None
    count = int(((measured >= interval[0]) & (measured <= interval[1]))[known].sum())
    low, high = np.ceil(bdtrik([0.025, 0.975], of, CONFIDENCE)).astype(int).tolist()
    return Coverage(count, of, low, high)


def _row_scores(
    tested: Observed, tokens_per_s: FloatArray, e2e_s: FloatArray, interval: Interval | None
) -> tuple[RowScore, ...]:
    measured = tested.observations
    points = measured.points
    return tuple(
        RowScore(
            row=int(measured.rows[i]),
            model=points.models[points.model_index[i]].name,
            input_tokens=float(points.input_tokens[i]),
            output_tokens=float(points.output_tokens[i]),
            batch=float(points.batch[i]),
            measured_tokens_per_s=float(measured.total_tokens_per_s[i]),
            predicted_tokens_per_s=float(tokens_per_s[i]),
            low_tokens_per_s=None if interval is None else float(interval[0][i]),
            high_tokens_per_s=None if interval is None else float(interval[1][i]),
            error_pct=float(100 * (tokens_per_s[i] / measured.total_tokens_per_s[i] - 1)),
            measured_e2e_s=float(measured.e2e_s[i]) if np.isfinite(measured.e2e_s[i]) else None,
            predicted_e2e_s=float(e2e_s[i]),
        )
        for i in range(len(measured.rows))
    )


def _step_scores(
    tested: StepObservations, predicted_s: FloatArray, interval: Interval | None
) -> tuple[StepScore, ...]:
    steps = tested.steps
    return tuple(
        StepScore(
            row=int(tested.rows[i]),
            model=steps.models[steps.model_index[i]].name,
            tensor_parallel_size=float(steps.tensor_parallel_size[i]),
            prefill_tokens=float(steps.prefill_tokens[i]),
            decode_requests=float(steps.decode_requests[i]),
            decode_context_tokens=float(steps.decode_context_tokens[i]),
            measured_s=float(tested.step_time_s[i]),
            predicted_s=float(predicted_s[i]),
            low_s=None if interval is None else float(interval[0][i]),
            high_s=None if interval is None else float(interval[1][i]),
            error_pct=float(100 * (predicted_s[i] / tested.step_time_s[i] - 1)),
        )
        for i in range(len(tested.rows))
    )
