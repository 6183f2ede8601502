"""In which respects a prediction leaves what the fit has seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from servefit.calibration import Discrepancy, Range
from servefit.laws.features import formulas_of_rows
from servefit.points import BoolArray, EngineSteps, Points, Serving

#: Value of each factor, one entry a measurement: names as text, sizes as logarithms.
Factors = Mapping[str, npt.NDArray[Any]]

#: What a law may be off by where a prediction leaves what the fit has seen, as a standard deviation
#: of the logarithm, before any group of rows was left out: another model, another degree of tensor
#: parallelism, other lengths, another GPU, other batches, another way to batch; another maker's
#: GPUs, whose software is another too (of the peak, large matrix products are reported to reach
#: about 47 % on an MI300X and 73 % on an H100; of the bandwidth, a stream 80 % and 92 %); a feature
#: that only a formula stands for (uniform routing, no time to dequantise, free sends).
PRIOR_LOG_SD: Mapping[str, float] = {
    "model": 0.05,
    "tensor_parallel_size": 0.05,
    "length": 0.02,
    "gpu": 0.07,
    "batch": 0.04,
    "mode": 0.08,
    "vendor": 0.15,
    "formulas": 0.10,
}
#: What the priors stand for: engines on this maker's GPUs, without such features.
OF_THE_PRIORS: Mapping[str, tuple[str, ...]] = {"vendor": ("NVIDIA",), "formulas": ("",)}
#: So many left-out groups is that worth.
PRIOR_GROUPS = 2.0
#: Factors that have a size, not kinds.
SIZES = ("length", "batch")
#: A size this many times beyond the seen range is outside it.
OUTSIDE_RATIO = 1.25


def factors_of_points(points: Points, serving: Serving) -> Factors:
    """Factors of points of one dimension."""
    chunked = np.where(serving.chunked_prefill == 0, "whole prompts", "chunked prefill")
    return {
        **_what_ran(points),
        "formulas": formulas_of_rows(points, serving),
        "length": np.log(points.input_tokens + points.output_tokens),
        "batch": np.log(points.batch),
        "mode": np.where(serving.static, "static batch", chunked),
    }


def factors_of_steps(steps: EngineSteps) -> Factors:
    """Factors of single steps."""
    decoding = steps.decode_requests > 0
    each = np.divide(
        steps.decode_context_tokens,
        steps.decode_requests,
        out=np.zeros_like(steps.decode_requests),
        where=decoding,
    )
    with_decodes = np.where(decoding, "mixed step", "prefill step")
    return {
        **_what_ran(steps),
        "formulas": formulas_of_rows(steps),
        "length": np.log(1 + each + steps.prefill_tokens),
        "batch": np.log(np.maximum(steps.decode_requests + steps.prefill_tokens, 1)),
        "mode": np.where(steps.prefill_tokens > 0, with_decodes, "decode step"),
    }


def _what_ran(seen: Points | EngineSteps) -> dict[str, npt.NDArray[Any]]:
    return {
        "model": np.array([m.name for m in seen.models])[seen.model_index],
        "gpu": np.array([h.name for h in seen.hardware])[seen.hardware_index],
        # A GPU of which nobody said who made it is taken for one of those behind the priors.
        "vendor": np.array([h.vendor or "NVIDIA" for h in seen.hardware])[seen.hardware_index],
        "tensor_parallel_size": seen.tensor_parallel_size.astype(np.int64).astype(str),
    }


def seen(name: str, values: npt.NDArray[Any], inflation: float, groups: float) -> Discrepancy:
    """What was seen of a factor, and what lies beyond: as inflated, known from so many groups."""
    log_sd = PRIOR_LOG_SD[name] * float(np.sqrt(inflation))
    if name in SIZES:
        span = Range(float(np.min(values)), float(np.max(values)))
        return Discrepancy(log_sd, inflation, groups, span=span)
    levels = set(values.tolist())
    if name == "formulas":
        levels.add("")  # Doing without is no step into the unknown.
    return Discrepancy(log_sd, inflation, groups, levels=tuple(sorted(levels)))


def nothing_seen() -> dict[str, Discrepancy]:
    """Without any run, every prediction leaves all but what the priors stand for."""
    return {
        name: Discrepancy(sd, 1.0, PRIOR_GROUPS, levels=OF_THE_PRIORS.get(name, ()))
        for name, sd in PRIOR_LOG_SD.items()
    }


def left(known: Discrepancy, values: npt.NDArray[Any]) -> BoolArray:
    """Where a factor leaves what was seen of it."""
    if known.span is None:
        return np.asarray(~np.isin(values, known.levels))
    margin = np.log(OUTSIDE_RATIO)
    return np.asarray((values > known.span.high + margin) | (values < known.span.low - margin))
