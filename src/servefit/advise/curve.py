"""Throughput and latency over candidate batch caps: all that a decision rule looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from servefit import laws
from servefit.advise.rules import batching_efficiency
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.intervals import intervals
from servefit.points import FloatArray, IntArray, Points

#: Latencies that an SLO can bound, in the order they are printed.
LATENCIES = ("e2e", "ttft", "tpot")


@dataclass(frozen=True)
class Curve:
    """What each candidate cap gives; arrays have one entry a candidate, caps ascending.

    Attributes:
        cap: the engine's batch cap (``max_num_seqs``).
        batch: requests that then run at once; below the cap where something else limits them.
        total_tokens_per_s: throughput T, input and output tokens (Eq. 6); NaN if unknown.
        latency_s: mean latency of one request by name (`LATENCIES`), without queueing; NaN where
            unknown.
        latency_bound_s: the latency that holds with ``confidence``; ``latency_s`` itself where
            the curve is measured or its uncertainty unknown.
        throughput_bound: the same for T: a lower bound, total tokens/s.
        input_tokens, output_tokens: mean lengths of a request.
        single_tokens_per_s: T(1), by which batching efficiency is measured; NaN if unknown.
        confidence: one-sided confidence of the bounds; ``None`` where they are point estimates.
        notes: assumptions that a reader must know, one sentence each.
    """

    cap: IntArray
    batch: FloatArray
    total_tokens_per_s: FloatArray
    latency_s: Mapping[str, FloatArray]
    latency_bound_s: Mapping[str, FloatArray]
    throughput_bound: FloatArray
    input_tokens: float
    output_tokens: float
    single_tokens_per_s: float
    confidence: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def tokens_per_request(self) -> float:
        """IL + OL: what one request holds in the KV cache when it ends."""
        return self.input_tokens + self.output_tokens

    @property
    def requests_per_s(self) -> FloatArray:
        """Throughput in requests: T / (IL + OL)."""
        return self.total_tokens_per_s / self.tokens_per_request

    @property
    def efficiency(self) -> FloatArray:
        """T(B) / (B T(1)) of Eq. 13."""
        return batching_efficiency(self.batch, self.total_tokens_per_s, self.single_tokens_per_s)

    def at_point_estimate(self) -> Curve:
        """The same curve with its point estimates as bounds."""
        return replace(
            self,
            latency_bound_s=self.latency_s,
            throughput_bound=self.total_tokens_per_s,
            confidence=None,
        )

    def only(self, caps: IntArray) -> Curve:
        """The candidates among ``caps``; raises `ServefitError` for one that is not here."""
        missing = np.setdiff1d(caps, self.cap)
        if missing.size:
            here = ", ".join(str(c) for c in self.cap.tolist())
            raise ServefitError(f"candidate {missing[0]}: not among the measured caps {here}")
        keep = np.isin(self.cap, caps)
        return replace(
            self,
            cap=self.cap[keep],
            batch=self.batch[keep],
            total_tokens_per_s=self.total_tokens_per_s[keep],
            latency_s={name: s[keep] for name, s in self.latency_s.items()},
            latency_bound_s={name: s[keep] for name, s in self.latency_bound_s.items()},
            throughput_bound=self.throughput_bound[keep],
        )


def predicted_curve(
    calibration: Calibration,
    points: Points,
    caps: IntArray,
    *,
    confidence: float | None = None,
) -> Curve:
    """The curve that a calibrated law predicts.

    A bound at one-sided confidence c is the end of the law's central interval of 2 c - 1.

    Args:
        calibration: a fitted law.
        points: one point: model, accelerator, lengths and schedule; its batch is ignored.
        caps: ascending candidate caps, see `servefit.advise.candidates`.
        confidence: one-sided, in [0.5, 1); 0.5 and ``None`` ask for the point estimate.

    Raises:
        ServefitError: the confidence is out of range.
    """
    if confidence is not None and not 0.5 <= confidence < 1:
        raise ServefitError(
            f"confidence = {confidence:g}: must be at least 0.5 (the point estimate) and below 1"
        )
    at_caps = points.with_batch(caps.astype(np.float64))
    answer = laws.predict(calibration, at_caps)
    latency = {"e2e": answer.e2e_s, "ttft": answer.ttft_s, "tpot": answer.tpot_s}
    single = laws.predict(calibration, points.with_batch(1.0))
    curve = Curve(
        cap=caps,
        batch=answer.batch,
        total_tokens_per_s=answer.total_tokens_per_s,
        latency_s=latency,
        latency_bound_s=latency,
        throughput_bound=answer.total_tokens_per_s,
        input_tokens=float(points.input_tokens),
        output_tokens=float(points.output_tokens),
        single_tokens_per_s=float(single.total_tokens_per_s),
    )
    if confidence is None or confidence == 0.5:
        return curve
    interval = intervals(answer, laws.spread(calibration, at_caps), 2 * confidence - 1)
    if interval is None:
        note = (
            "the fit left nothing to estimate its uncertainty from: the SLO is checked on the "
            "point estimate"
        )
        return replace(curve, notes=(note,))
    return replace(
        curve,
        latency_bound_s={name: interval[f"{name}_s"][1] for name in latency},
        throughput_bound=interval["total_tokens_per_s"][0],
        confidence=confidence,
    )


def measured_curve(
    *,
    cap: npt.ArrayLike,
    batch: npt.ArrayLike,
    total_tokens_per_s: npt.ArrayLike,
    latency_s: Mapping[str, npt.ArrayLike],
    input_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    single_tokens_per_s: float | None = None,
) -> Curve:
    """The curve of measured runs: full-profile BCA, the same rules without a model.

    Runs at the same cap are averaged. T(1) is the run at batch 1; where the smallest batch b is
    larger, T(1) = T(b) / b, as if batching had cost nothing up to b, which is said in ``notes``:
    it can only make T(1) too small and batching efficiency too large.

    Args:
        cap: the batch cap of each run; of a static batch, its size.
        batch: mean requests that ran at once.
        total_tokens_per_s: measured throughput.
        latency_s: measured means by name; a missing name is unknown.
        input_tokens, output_tokens: mean lengths of each run.
        single_tokens_per_s: T(1), where it is known from elsewhere.

    Raises:
        ServefitError: no run; a cap or batch that is not positive; runs of different lengths.
    """
    caps = np.asarray(cap, dtype=np.float64)
    if caps.size == 0:
        raise ServefitError("no measured run is left to choose from: select other rows")
    _require_positive("batch cap", caps)
    _require_positive("batch", np.asarray(batch, dtype=np.float64))
    lengths = [
        _common_length("input_tokens", input_tokens),
        _common_length("output_tokens", output_tokens),
    ]
    distinct, group = np.unique(np.rint(caps).astype(np.int64), return_inverse=True)
    runs_at = np.bincount(group)

    def mean(values: npt.ArrayLike) -> FloatArray:
        spread = np.broadcast_to(np.asarray(values, dtype=np.float64), caps.shape)
        return np.bincount(group, weights=spread) / runs_at

    throughput, running = mean(total_tokens_per_s), mean(batch)
    latency = {name: mean(latency_s.get(name, np.nan)) for name in LATENCIES}
    notes = []
    if runs_at.max() > 1:
        notes.append(f"{caps.size} runs at {distinct.size} caps: runs at the same cap are averaged")
    if single_tokens_per_s is not None:
        _require_positive("T(1)", np.array([single_tokens_per_s]))
    else:
        known = np.flatnonzero(np.isfinite(throughput))
        smallest = known[np.argmin(running[known])] if known.size else 0
        at = max(float(running[smallest]), 1.0)
        single_tokens_per_s = float(throughput[smallest]) / at
        if at > 1.05:
            notes.append(
                f"no run at batch 1: T(1) is taken as T({at:.4g}) / {at:.4g}, which can only "
                "overstate batching efficiency"
            )
    return Curve(
        cap=distinct,
        batch=running,
        total_tokens_per_s=throughput,
        latency_s=latency,
        latency_bound_s=latency,
        throughput_bound=throughput,
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        single_tokens_per_s=single_tokens_per_s,
        notes=tuple(notes),
    )


def _require_positive(name: str, values: FloatArray) -> None:
    bad = ~(np.isfinite(values) & (values > 0))
    if bad.any():
        value = float(values[bad].ravel()[0])
        raise ServefitError(f"{name} = {value:g}: must be known and positive")


def _common_length(name: str, values: npt.ArrayLike) -> float:
    """The mean, once the runs agree within 2 %."""
    lengths = np.asarray(values, dtype=np.float64)
    _require_positive(name, lengths)
    low, high = float(lengths.min()), float(lengths.max())
    if high > 1.02 * low:
        raise ServefitError(
            f"the runs mix {name} {low:g} to {high:g}: a curve has one length; select one with "
            f"--where {name}=..."
        )
    return float(lengths.mean())
