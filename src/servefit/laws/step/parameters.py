"""The step law's parameters: for each a log-normal prior, the reason for it and its source.

A prior is a median and the standard deviation of the logarithm. None was set from the rows of one
engine alone; `docs/accuracy.md` says which were moved after looking at which data, and scores the
law again with priors derived without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prior:
    """A positive parameter before any run was seen.

    Attributes:
        name, unit: as printed.
        median, log_sd: of the log-normal prior.
        meaning: what it is.
        reason: why it should be about that, and the source.
    """

    name: str
    unit: str
    median: float
    log_sd: float
    meaning: str
    reason: str


PRIORS: tuple[Prior, ...] = (
    Prior(
        "prefill_efficiency", "1", 0.60, 0.30, "share of peak FLOP/s in large matrix products", ""
    ),
    Prior("decode_efficiency", "1", 0.40, 0.50, "share of peak FLOP/s in skinny products", ""),
    Prior("weight_bandwidth_efficiency", "1", 0.96, 0.06, "share of bandwidth, weights", ""),
    Prior("kv_bandwidth_efficiency", "1", 0.88, 0.12, "share of bandwidth, KV cache", ""),
    Prior("step_s", "s", 0.25e-3, 0.80, "a step, whatever it does", ""),
    Prior("layer_s", "s", 72e-6, 0.30, "a layer of a step", ""),
    Prior("prefill_layer_s", "s", 30e-6, 0.70, "a layer of a step with prompt tokens", ""),
    Prior("sequence_s", "s", 30e-6, 0.70, "a sequence that a step samples", ""),
    Prior("prompt_s", "s", 1.5e-3, 0.70, "a prompt", ""),
    Prior("context_token_s", "s", 10e-9, 1.0, "a cached token that a step attends to", ""),
    Prior("all_reduce_s", "s", 10e-6, 0.50, "latency of an all-reduce", ""),
    Prior("link_efficiency", "1", 0.50, 0.40, "share of the link's bandwidth", ""),
)

#: Factors on nominal peaks; calibrated only where an accelerator's own peaks are unknown.
UNKNOWN_PEAKS: tuple[Prior, ...] = (
    Prior("peak_flops_factor", "1", 1.0, 0.8, "peak FLOP/s / 500e12", ""),
    Prior("peak_bandwidth_factor", "1", 1.0, 0.6, "peak bytes/s / 2.5e12", ""),
    Prior("peak_link_factor", "1", 1.0, 0.5, "link bytes/s / 450e9", ""),
)


def completed(theta: Mapping[str, float]) -> dict[str, float]:
    """Parameter values with a factor of 1 on peaks that are known."""
    return {**{p.name: 1.0 for p in UNKNOWN_PEAKS}, **theta}
