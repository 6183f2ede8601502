"""The step law's priors once more, derived mechanically and without some of the data.

The priors of `servefit.laws.step.parameters` were set by people who had seen the published rows.
Here every parameter starts from a vague log-normal, the law is fitted on each data set alone, and
the estimates are pooled: nobody chooses a number after seeing a score. What is scored is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchmarks.accuracy.settings import selected
from servefit.hardware import UNKNOWN
from servefit.laws.step import StepLaw
from servefit.laws.step.parameters import PRIORS, Prior
from servefit.observations import ContextFrom, observe, observe_steps

#: Median and log-sd that say little: orders of magnitude from data sheets and kernel launches.
VAGUE: Mapping[str, tuple[float, float]] = {
    "prefill_efficiency": (0.6, 0.5),
    "decode_efficiency": (0.5, 0.7),
    "weight_bandwidth_efficiency": (0.9, 0.1),
    "kv_bandwidth_efficiency": (0.8, 0.2),
    "step_s": (0.3e-3, 1.0),
    "layer_s": (60e-6, 1.0),
    "prefill_layer_s": (30e-6, 1.0),
    "sequence_s": (20e-6, 1.0),
    "prompt_s": (1e-3, 1.0),
    "context_token_s": (5e-9, 1.2),
    "all_reduce_s": (10e-6, 0.7),
    "link_efficiency": (0.6, 0.5),
}


@dataclass(frozen=True)
class DataSet:
    """Rows of one engine on one kind of GPU."""

    file: str
    where: tuple[str, ...]
    context_from: ContextFrom = "lengths"


DATA_SETS: Mapping[str, DataSet] = {
    "H100 64 GB, vLLM 0.5.2": DataSet(
        "h100_memory_gap/runs.csv", ("preemptions=0",), context_from="mean_live_tokens"
    ),
    "H100, vLLM of mid-2024": DataSet(
        "static_batch_vllm_2024/runs.csv", ("model=meta-llama/Llama-2-7b-hf", "gpu=H100")
    ),
    "A100, vLLM of mid-2024": DataSet(
        "static_batch_vllm_2024/runs.csv", ("model=meta-llama/Llama-2-7b-hf", "gpu=A100-40GB")
    ),
    "unknown GPU, vLLM 0.20": DataSet("step_times_vllm_qwen3_32b/steps.csv", ()),
}


def without(left_out: Collection[str]) -> tuple[Prior, ...]:
    """Priors pooled from every data set but those of these files.

    A data set's estimate x with standard error s (of the logarithm) carries the information
    1/s^2 - 1/v^2 beyond the vague prior's v. Sets differ by more than their errors: each counts
    with variance (v/2)^2 + 1/information, the vague prior with v^2.
    """
    used = [name for name, data in DATA_SETS.items() if data.file not in left_out]
    pooled = []
    for prior in PRIORS:
        median, v = VAGUE[prior.name]
        values, variances = [np.log(median)], [v**2]
        for name in used:
            value, error = _estimates(name)[prior.name]
            information = 1 / error**2 - 1 / v**2
            if information > 1 / v**2:
                values.append(value)
                variances.append((v / 2) ** 2 + 1 / information)
        weights = 1 / np.array(variances)
        mean = np.average(values, weights=weights)
        spread = np.average((np.array(values) - mean) ** 2, weights=weights) + 1 / weights.sum()
        pooled.append(
            replace(prior, median=float(np.exp(mean)), log_sd=float(np.sqrt(spread)), reason="")
        )
    return tuple(pooled)


@cache
def _estimates(name: str) -> dict[str, tuple[float, float]]:
    """Logarithm of each parameter and its standard error, from one data set and vague priors."""
    data = DATA_SETS[name]
    rows = selected(data.file, data.where)
    vague = tuple(replace(p, median=VAGUE[p.name][0], log_sd=VAGUE[p.name][1]) for p in PRIORS)
    law = StepLaw(priors=vague)
    if rows.kind == "steps":
        fit = law.fit(observe_steps(rows.frame, gpu=UNKNOWN))
    else:
        fit = law.fit(observe(rows.frame, context_from=data.context_from).observations)
    return {
        p.name: (float(np.log(p.value)), p.stderr / p.value)
        for p in fit.parameters
        if p.stderr is not None
    }
