"""LLMVisor-Agg: a piecewise linear baseline on aggregate token counts.

Certain, from public notes on LLMVisor (arXiv 2608.08382) and from the paper's account of its
aggregate form: an engine step costs

    beta + a1 sum(p) + a2 sum(c) + a3 sum(p^2) + a4 |B|

with p the tokens that each request has processed in the step, c those in its context, |B| the
batch; prefill and decode apart, two linear segments each; no feature of the model's architecture.
The aggregate form is fitted to mean TTFT and mean ITL of a run, and E2E is rebuilt from the two.

A construction, since the full text was not at hand:

    TTFT = [1, B IL, B IL^2, B] a           breakpoint on sum(p) = B IL
    ITL  = [1, B, B (IL + (OL + 1) / 2)] d  breakpoint on sum(p) = sum(p^2) = |B|
    E2E  = TTFT + (OL - 1) ITL

The breakpoint is the midpoint between two seen values that leaves the least squared error; where
one side would have fewer rows than features there is one segment. Coefficients are ordinary least
squares of seconds, of minimum norm where the rows do not determine them. A prediction that is not
positive is replaced by the smallest value trained on.

TTFT means service, never queueing: where a row lacks it, E2E - (OL - 1) TPOT stands in if
positive, and the rows that this loses are counted in the calibration's notes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.base import Observations, Prediction, StepObservations
from servefit.laws.baseline import Baseline, accounted, coefficients, least_squares
from servefit.laws.support import prediction, require_parameters, setting
from servefit.parameters import FittedParameter
from servefit.points import FloatArray, Points

PREFILL = ("constant", "tokens", "squared tokens", "requests")
DECODE = ("constant", "requests", "context tokens")


@dataclass(frozen=True)
class _Piecewise:
    """One or two linear segments; ``breakpoint`` is ``None`` where there is one."""

    breakpoint: float | None
    segments: tuple[FloatArray, ...]
    smallest_s: float

    def __call__(self, features: FloatArray, along: FloatArray) -> FloatArray:
        """Seconds at features (..., k), where ``along`` (...) tells the segment."""
        values = [features @ segment for segment in self.segments]
        if self.breakpoint is None:
            seconds = values[0]
        else:
            seconds = np.where(along <= self.breakpoint, values[0], values[1])
        return np.where(seconds > 0, seconds, self.smallest_s)


@dataclass(frozen=True)
class LlmVisor(Baseline):
    """The baseline as `servefit.laws` offers it."""

    name: str = "llmvisor"

    def fit(self, observations: Observations | StepObservations) -> Calibration:
        """Four least-squares fits: prefill on service TTFT, decode on ITL, two segments each.

        ITL is ``itl_s``, else TPOT.

        Raises:
            ServefitError: no row carries a service TTFT (or E2E and TPOT that imply one), or none
                an ITL; fewer than two distinct points.
        """
        runs = self._runs(observations)
        ttft_s, itl_s = service_ttft_s(runs), between_tokens_s(runs)
        has_ttft, has_itl = np.isfinite(ttft_s), np.isfinite(itl_s)
        if not has_ttft.any():
            raise ServefitError(
                "llmvisor: not fittable: no row carries a service TTFT, nor E2E and TPOT with "
                "E2E > (OL - 1) TPOT; a TTFT that includes queueing is not used"
            )
        if not has_itl.any():
            raise ServefitError("llmvisor: not fittable: no row carries ITL or TPOT")
        features, along = _prefill_features(runs.points)
        prefill = _fit(features[has_ttft], along[has_ttft], ttft_s[has_ttft])
        features, along = _decode_features(runs.points)
        decode = _fit(features[has_itl], along[has_itl], itl_s[has_itl])
        rows = len(runs.rows)
        notes = [
            f"{int((~has).sum())} of {rows} rows carry no {what} and are lost to the {phase} fit"
            for has, what, phase in (
                (has_ttft, "service TTFT, given or implied,", "prefill"),
                (has_itl, "ITL or TPOT", "decode"),
            )
            if not has.all()
        ]
        bare = Calibration(
            law=self.name,
            parameters=(
                *_parameters("prefill", PREFILL, prefill),
                *_parameters("decode", DECODE, decode),
            ),
            settings={
                "prefill_break_tokens": prefill.breakpoint,
                "decode_break_requests": decode.breakpoint,
                "smallest_ttft_s": prefill.smallest_s,
                "smallest_itl_s": decode.smallest_s,
            },
            notes=tuple(notes),
        )
        return accounted(self, bare, runs)

    def predict(self, calibration: Calibration, points: Points) -> Prediction:
        """E2E = TTFT + (OL - 1) ITL."""
        breaks = [
            setting(calibration, name, float | None)
            for name in ("prefill_break_tokens", "decode_break_requests")
        ]
        segments, decode_segments = (1 if at is None else 2 for at in breaks)
        names = [*_names("prefill", PREFILL, segments), *_names("decode", DECODE, decode_segments)]
        require_parameters(calibration, names, signed=True)
        values, split = calibration.theta(), segments * len(PREFILL)
        prefill = _Piecewise(
            breaks[0],
            tuple(values[:split].reshape(segments, -1)),
            setting(calibration, "smallest_ttft_s", float),
        )
        decode = _Piecewise(
            breaks[1],
            tuple(values[split:].reshape(decode_segments, -1)),
            setting(calibration, "smallest_itl_s", float),
        )
        ttft_s = prefill(*_prefill_features(points))
        decode_s = (points.output_tokens - 1) * decode(*_decode_features(points))
        return prediction(
            points,
            terms_s={"prefill": ttft_s, "decode": decode_s},
            prefill_s=ttft_s,
            decode_s=decode_s,
            ttft_s=ttft_s,
        )


def service_ttft_s(runs: Observations) -> FloatArray:
    """Each row's TTFT in service: as given, else E2E - (OL - 1) TPOT if positive; else NaN."""
    implied = runs.e2e_s - (runs.points.output_tokens - 1) * runs.tpot_s
    with np.errstate(invalid="ignore"):
        implied = np.where(implied > 0, implied, np.nan)
    return np.where(np.isfinite(runs.ttft_s), runs.ttft_s, implied)


def between_tokens_s(runs: Observations) -> FloatArray:
    """Each row's ITL, else its TPOT; NaN where unknown or where there is one output token."""
    itl_s = np.where(np.isfinite(runs.itl_s), runs.itl_s, runs.tpot_s)
    return np.where(runs.points.output_tokens > 1, itl_s, np.nan)


def _prefill_features(points: Points) -> tuple[FloatArray, FloatArray]:
    batch, prompt = np.broadcast_arrays(points.batch, points.input_tokens)
    tokens = batch * prompt
    return np.stack([np.ones_like(tokens), tokens, tokens * prompt, batch], axis=-1), tokens


def _decode_features(points: Points) -> tuple[FloatArray, FloatArray]:
    context = points.mean_context_tokens
    if context is None:
        context = points.input_tokens + (points.output_tokens + 1) / 2
    batch, context = np.broadcast_arrays(points.batch, context)
    return np.stack([np.ones_like(batch), batch, batch * context], axis=-1), batch


def _fit(features: FloatArray, along: FloatArray, target_s: FloatArray) -> _Piecewise:
    """Two segments about the best breakpoint, or one where a side has too few rows."""
    smallest = float(target_s.min())
    seen = np.unique(along)
    best_error, best = np.inf, None
    for middle in (seen[:-1] + seen[1:]) / 2:
        sides = along <= middle, along > middle
        if min(side.sum() for side in sides) < features.shape[1]:
            continue
        segments = tuple(least_squares(features[side], target_s[side]) for side in sides)
        error = sum(
            float(np.sum((features[side] @ segment - target_s[side]) ** 2))
            for side, segment in zip(sides, segments, strict=True)
        )
        if error < best_error:
            best_error, best = error, _Piecewise(float(middle), segments, smallest)
    return best or _Piecewise(None, (least_squares(features, target_s),), smallest)


def _parameters(
    phase: str, names: tuple[str, ...], fitted: _Piecewise
) -> tuple[FittedParameter, ...]:
    values = np.concatenate(fitted.segments)
    return coefficients(_names(phase, names, len(fitted.segments)), values)


def _names(phase: str, names: tuple[str, ...], segments: int) -> list[str]:
    return [f"{phase} {number}: {name}" for number in range(1, segments + 1) for name in names]
