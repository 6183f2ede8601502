"""Decisions from two measured points a model, against the measured curves.

On every fixed-length curve whose rows without preemption cross the SLO, the advisor (efficiency
rule, epsilon 0) says the largest batch that meets it; what was measured is the crossing,
interpolated in ``mean_batch``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from benchmarks.accuracy.settings import Setting, selected, settings
from servefit.advise import Decision, Slo, decide, predicted_curve
from servefit.advise.decision import Objective
from servefit.calibration import Calibration
from servefit.laws import Law
from servefit.observations import observe
from servefit.points import Points
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable

TPOT_LIMIT_S = 0.030
CONFIDENCE = 0.9
CAPS = np.arange(1, 513)


@dataclass(frozen=True)
class Choice:
    """One curve: the largest batch that meets the SLO."""

    model: str
    output_tokens: float
    measured: float
    point: int
    confident: int

    @property
    def error_pct(self) -> float:
        """Of the point estimate."""
        return 100 * (self.point / self.measured - 1)

    @property
    def violated(self) -> bool:
        """Whether the batch chosen at `CONFIDENCE` breaks the measured SLO."""
        return self.confident > self.measured


def choices(law: Law) -> list[Choice]:
    """All curves that cross the SLO, each decided from its model's two points."""
    found = []
    for setting in settings():
        if not setting.name.startswith("two points"):
            continue
        rows = selected(setting.file, (*setting.where, "preemptions=0"))
        calibration = _two_points(setting, rows, law)
        for output_tokens in sorted(set(rows.numbers("output_tokens").tolist())):
            curve = rows.filter(rows.numbers("output_tokens") == output_tokens)
            measured = crossing(curve)
            if measured is not None:
                point, confident = _chosen(calibration, _point_of(curve))
                model = calibration.models[0].name
                found.append(Choice(model, output_tokens, measured, point, confident))
    return found


def _two_points(setting: Setting, rows: RunTable, law: Law) -> Calibration:
    train = rows.filter(parse_selections(setting.train).mask(rows.frame))
    return law.fit(observe(train.frame).observations)


def crossing(curve: RunTable) -> float | None:
    """Batch at which the measured TPOT passes the limit; ``None`` where it never does."""
    batch, tpot_s = curve.numbers("mean_batch"), curve.numbers("tpot_mean_s")
    order = np.argsort(batch)
    batch, tpot_s = batch[order], tpot_s[order]
    above = np.flatnonzero(tpot_s > TPOT_LIMIT_S)
    if above.size == 0 or above[0] == 0:
        return None
    pair = slice(above[0] - 1, above[0] + 1)
    return float(np.interp(TPOT_LIMIT_S, tpot_s[pair], batch[pair]))


def _point_of(curve: RunTable) -> Points:
    """Model, accelerator, lengths and serving of the curve; its batch is to be chosen."""
    one = observe(curve.frame.filter(pl.int_range(pl.len()) == 0)).observations.points
    if one.serving is None:
        raise ValueError("observed points always know how they were served")
    return replace(
        Points.of(
            one.models[0],
            one.hardware[0],
            input_tokens=one.input_tokens[0],
            output_tokens=one.output_tokens[0],
            batch=1,
        ),
        serving=replace(
            one.serving,
            static=one.serving.static[0],
            chunked_prefill=one.serving.chunked_prefill[0],
            max_num_batched_tokens=one.serving.max_num_batched_tokens[0],
            kv_capacity_tokens=one.serving.kv_capacity_tokens[0],
        ),
    )


def _chosen(calibration: Calibration, points: Points) -> tuple[int, int]:
    """The advisor's cap by the point estimate, and with `CONFIDENCE`; 0 where none is allowed."""
    objective = Objective((Slo("tpot", TPOT_LIMIT_S),), "efficiency", 0.0)
    caps = []
    for confidence in (None, CONFIDENCE):
        curve = predicted_curve(calibration, points, CAPS, confidence=confidence)
        decision = decide(curve, objective)
        caps.append(decision.chosen.batch_cap if isinstance(decision, Decision) else 0)
    return caps[0], caps[1]
