"""IMAI OOD-LR: linear regression of E2E on workload and architecture, with interactions.

Certain, from the paper: E2E is a linear regression on B, IL, OL, D, L and the heads "and
interaction features"; T = B (IL + OL) / E2E. It descends from Imai et al. (MLforSys at NeurIPS
2024), an analytical roofline plus a regression for the overhead, whose exact features are not
public.

A construction: the features are standardised over the training rows, of second degree and
interaction only, 1 + 6 + 15 coefficients; ordinary least squares of seconds through the
pseudo-inverse (minimum norm where undetermined); no prediction below the smallest latency trained
on. A feature that does not vary in training has no influence.

``imai-roofline`` is nearer to the original: E2E = T_roofline + the same regression on the rest,

    T_roofline = max(F_pre / F, W / BW) + (OL - 1) max(F_dec / F, (W + B kv ctx) / BW)

with W the weights that a step streams, ctx = IL + OL / 2, and F, BW the accelerators' peaks. Both
leave TTFT and TPOT unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Annotated

import msgspec
import numpy as np

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.laws.base import Observations, Prediction, StepObservations
from servefit.laws.baseline import Baseline, accounted, coefficients
from servefit.laws.support import prediction, require_parameters, setting
from servefit.points import FloatArray, Points

FEATURES = ("B", "IL", "OL", "D", "L", "H_q")
PAIRS = tuple(combinations(range(len(FEATURES)), 2))
#: Numbers that a fit notes, one a feature.
PerFeature = Annotated[
    list[float | None], msgspec.Meta(min_length=len(FEATURES), max_length=len(FEATURES))
]
NAMES = ("1", *FEATURES, *(f"{FEATURES[i]} x {FEATURES[j]}" for i, j in PAIRS))


@dataclass(frozen=True)
class Imai(Baseline):
    """The baseline as `servefit.laws` offers it.

    Attributes:
        roofline: regress what the analytical roofline leaves of E2E, not E2E itself.
    """

    roofline: bool = False
    name: str = "imai"

    def fit(self, observations: Observations | StepObservations) -> Calibration:
        """Least squares of E2E seconds, or of E2E - T_roofline.

        Raises:
            ServefitError: no E2E, given or implied; fewer than two distinct points; for the
                roofline, an accelerator with unknown peaks.
        """
        runs = self._runs(observations)
        known = np.isfinite(runs.e2e_s)
        if not known.any():
            raise ServefitError(
                f"{self.name}: not fittable: no row carries E2E, or a batch and throughput that "
                "imply it"
            )
        raw = _features(runs.points)
        centre, spread = raw[known].mean(axis=0), raw[known].std(axis=0)
        scale = np.where(spread > 1e-12 * np.abs(centre), spread, np.inf)
        target_s = runs.e2e_s - (roofline_s(runs.points) if self.roofline else 0.0)
        values = np.linalg.pinv(_design(raw[known], centre, scale)) @ target_s[known]
        bare = Calibration(
            law=self.name,
            parameters=coefficients(NAMES, values),
            settings={
                "centre": centre.tolist(),
                "scale": [s if np.isfinite(s) else None for s in scale.tolist()],
                "smallest_e2e_s": float(runs.e2e_s[known].min()),
            },
            notes=() if known.all() else (f"{int((~known).sum())} rows carry no E2E",),
        )
        return accounted(self, bare, runs)

    def predict(self, calibration: Calibration, points: Points) -> Prediction:
        """The regression, on top of the roofline where it is asked for."""
        require_parameters(calibration, NAMES, signed=True)
        centre = setting(calibration, "centre", PerFeature)
        scale = setting(calibration, "scale", PerFeature)
        smallest_s = setting(calibration, "smallest_e2e_s", float)
        design = _design(
            _features(points),
            np.array(centre, dtype=np.float64),
            np.array([np.inf if s is None else s for s in scale]),
        )
        base_s = roofline_s(points) if self.roofline else np.zeros(points.shape)
        e2e_s = np.maximum(base_s + design @ calibration.theta(), smallest_s)
        terms = {"regression": e2e_s - base_s}
        if self.roofline:
            terms = {"roofline": base_s, **terms}
        unknown = np.full(points.shape, np.nan)
        return prediction(
            points, terms_s=terms, prefill_s=unknown, decode_s=unknown, ttft_s=unknown
        )


def roofline_s(points: Points) -> FloatArray:
    """T_roofline of the module's text, with FLOPs and bytes shared by the replica's accelerators.

    Raises:
        ServefitError: an accelerator's peaks are unknown.
    """
    for hardware in points.hardware:
        if not hardware.has_known_peaks:
            raise ServefitError(
                f"imai-roofline: the peaks of {hardware.name} are unknown: name the accelerator, "
                "or use imai"
            )
    flops_per_s = points.tensor_parallel_size * points.per_pair(
        lambda m, h: h.peak_flops(m.weight_dtype) or np.nan
    )
    bytes_per_s = points.tensor_parallel_size * points.per_hardware(
        lambda h: h.memory_bandwidth_bytes_per_s or np.nan
    )
    shape = points.shape
    batch, prompt, answer, model = (
        np.broadcast_to(a, shape).ravel()
        for a in (points.batch, points.input_tokens, points.output_tokens, points.model_index)
    )
    context = prompt + answer / 2
    prefill_flops, decode_flops, prefill_bytes, decode_bytes = np.empty((4, batch.size))
    for index, shape_of in enumerate(points.models):
        own = model == index
        each = 2.0 * shape_of.num_matmul_parameters
        b, il, ctx = batch[own], prompt[own], context[own]
        prefill_flops[own] = b * (each * il + shape_of.prefill_attention_flops(il))
        decode_flops[own] = b * (each + shape_of.decode_attention_flops(ctx))
        prefill_bytes[own] = shape_of.streamed_weight_bytes(b * il)
        decode_bytes[own] = shape_of.streamed_weight_bytes(b) + b * shape_of.kv_read_bytes(ctx)
    f, w = (np.broadcast_to(a, shape).ravel() for a in (flops_per_s, bytes_per_s))
    prefill_s = np.maximum(prefill_flops / f, prefill_bytes / w)
    step_s = np.maximum(decode_flops / f, decode_bytes / w)
    total_s = prefill_s + np.maximum(answer - 1, 0) * step_s
    return np.asarray(total_s.reshape(shape))


def _features(points: Points) -> FloatArray:
    """B, IL, OL, D, L and H_q of each point, (..., 6)."""
    columns = (
        points.batch,
        points.input_tokens,
        points.output_tokens,
        points.per_model(lambda m: m.hidden_size),
        points.per_model(lambda m: m.num_layers),
        points.per_model(lambda m: m.num_attention_heads),
    )
    return np.stack([np.broadcast_to(c, points.shape) for c in columns], axis=-1)


def _design(raw: FloatArray, centre: FloatArray, scale: FloatArray) -> FloatArray:
    """1, the standardised features and their pairwise products, (..., 22)."""
    z = (raw - centre) / scale
    products = [z[..., i] * z[..., j] for i, j in PAIRS]
    return np.stack([np.ones(z.shape[:-1]), *np.moveaxis(z, -1, 0), *products], axis=-1)
