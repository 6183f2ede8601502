"""What each part of the step law is worth: scores without it, and with other priors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.accuracy.settings import Setting, error_pct, score, settings
from servefit.laws.step import StepLaw, physics, schedule
from servefit.laws.step import law as law_module
from servefit.laws.step.parameters import PRIORS, Prior
from servefit.laws.step.work import Cost, cost_of

#: As good as absent, and held there.
ABSENT = 1e-12

Errors = dict[str, float]


def scored() -> list[Setting]:
    """The settings that have a bar."""
    return [s for s in settings() if s.bar is not None]


def errors(law: StepLaw) -> Errors:
    """Error of every setting with a bar; intervals, which take most of the time, are not made."""
    with patch.object(law_module, "discrepancies", lambda *_: {}):
        return {s.name: float(error_pct(score(s, law)) or np.nan) for s in scored()}


def ablations() -> dict[str, Errors]:
    """Errors of the whole law, and of the law without each of its parts."""
    found = {"the whole law": errors(StepLaw())}
    for name, meaning in _DROPPED.items():
        found[f"without {meaning}"] = errors(StepLaw(priors=_without(name)))
    for meaning, patched in _CHANGED.items():
        with ExitStack() as stack:
            stack.enter_context(patched())
            found[meaning] = errors(StepLaw())
    return found


def sensitivity() -> dict[str, dict[str, Errors]]:
    """Errors with each prior's median one log-sd lower and higher."""
    found = {}
    for prior in PRIORS:
        moved = {
            sign: replace(prior, median=prior.median * float(np.exp(factor * prior.log_sd)))
            for sign, factor in (("-", -1), ("+", 1))
        }
        found[prior.name] = {s: errors(StepLaw(priors=_with(p))) for s, p in moved.items()}
    return found


def widths(factor: float) -> Errors:
    """Errors with every prior so many times as wide."""
    return errors(StepLaw(tuple(replace(p, log_sd=factor * p.log_sd) for p in PRIORS)))


def _with(prior: Prior) -> tuple[Prior, ...]:
    return tuple(prior if p.name == prior.name else p for p in PRIORS)


def _without(name: str) -> tuple[Prior, ...]:
    """The priors with one term gone: its time is nothing, or its rate without limit."""
    median = 1 / ABSENT if name == "link_efficiency" else ABSENT
    return tuple(replace(p, median=median, log_sd=1e-3) if p.name == name else p for p in PRIORS)


_DROPPED: Mapping[str, str] = {
    "step_s": "time a step",
    "layer_s": "time a layer",
    "prefill_layer_s": "extra time a layer with prompts",
    "sequence_s": "time a sequence",
    "prompt_s": "time a prompt",
    "context_token_s": "host time a cached token",
    "all_reduce_s": "all-reduce latency",
    "link_efficiency": "bytes over the link",
}


@contextmanager
def _without_attention_flops() -> Iterator[None]:
    def cheaper(*args: Any) -> Cost:
        cost = cost_of(*args)
        nothing = np.zeros_like(cost.attention_flops_s)
        return replace(cost, attention_flops_s=nothing, kv_flops_s=nothing)

    with patch.object(law_module, "cost_of", cheaper):
        yield


def _smoothness(exponent: float) -> AbstractContextManager[Any]:
    return patch.object(physics, "SMOOTHNESS", exponent)


_CHANGED: Mapping[str, Callable[[], AbstractContextManager[Any]]] = {
    "without attention compute": _without_attention_flops,
    "whole prompts share steps with decodes": lambda: patch.object(
        schedule, "_whole", schedule._chunked
    ),
    "static batches never overflow": lambda: patch.object(
        schedule, "_static_in_waves", schedule._static_at_once
    ),
    "weights + compute, a plain sum": lambda: _smoothness(1.0),
    "weights or compute, hypot": lambda: _smoothness(2.0),
    "weights or compute, a hard maximum": lambda: _smoothness(50.0),
}
