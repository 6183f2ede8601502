"""Invented models of each kind, and a step law without overheads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from servefit.calibration import Calibration
from servefit.hardware import Hardware
from servefit.laws.step.parameters import PRIORS, UNKNOWN_PEAKS
from servefit.laws.step.physics import step_terms
from servefit.laws.step.work import Steps, step_cost
from servefit.models import AttentionGroup, Experts, ModelShape
from servefit.models.shape import RecurrentGroup
from servefit.parameters import FittedParameter
from servefit.points import FloatArray

from .conftest import LARGE

FLOPS, BANDWIDTH, LINK = 1e15, 2e12, 4e11
GPU = Hardware("gpu", {"float16": FLOPS}, BANDWIDTH, 80 * 2**30, LINK)

DENSE = LARGE
WINDOWED = replace(
    DENSE,
    name="windowed",
    attention=(
        AttentionGroup(16, 64, 64, window_tokens=1000, num_query_heads=64),
        AttentionGroup(16, 64, 64, num_query_heads=64),
    ),
)
LATENT = replace(
    DENSE,
    name="latent",
    attention=(
        AttentionGroup(
            32,
            64,
            192,
            latent_size=576,
            num_query_heads=64,
            value_head_size=128,
            latent_value_size=512,
        ),
    ),
)
MIXTURE = replace(
    DENSE,
    name="mixture",
    experts=Experts(num_layers=32, num_experts=64, experts_per_token=4, ffn_size=1024),
    parameters=replace(DENSE.parameters, ffn=0, experts=64 * 32 * 3 * 1024 * 4096),
)
RECURRENT = replace(
    DENSE,
    name="recurrent",
    attention=(AttentionGroup(4, 64, 64, num_query_heads=64),),
    recurrent=(RecurrentGroup(28, "mamba2", 10_000, 1_000_000),),
)

#: Every share 1 and every time 0: what the accelerator's peaks alone allow.
IDEAL = {p.name: (0.0 if p.unit == "s" else 1.0) for p in (*PRIORS, *UNKNOWN_PEAKS)}
#: The priors' medians.
TYPICAL = {p.name: p.median for p in (*PRIORS, *UNKNOWN_PEAKS)}


def calibration(theta: dict[str, float]) -> Calibration:
    """A step law with these parameters, perfectly known."""
    parameters = tuple(FittedParameter(name, "", value) for name, value in theta.items())
    covariance = tuple(map(tuple, np.zeros((len(theta), len(theta))).tolist()))
    return Calibration("step", parameters, log_covariance=covariance, residual_sd=0.03)


def steps(
    *,
    decode: float = 0.0,
    context: float = 0.0,
    prompt_tokens: float = 0.0,
    prompts: float = 0.0,
    cached: float = 0.0,
    drafts: float = 0.0,
    context_sd: float = 0.0,
    prompt_spread: float = 1.0,
) -> Steps:
    """One step: ``decode`` requests of ``context`` tokens each, and prompts."""
    values = (1.0, prompt_tokens, prompts, cached, decode, decode * context, drafts)
    values += (context_sd, prompt_spread)
    return Steps(np.zeros(1, dtype=np.int64), *(np.array([float(v)]) for v in values))


def seconds(
    step: Steps,
    model: ModelShape = DENSE,
    theta: dict[str, float] = IDEAL,
    hardware: Hardware = GPU,
    tensor_parallel_size: int = 1,
) -> float:
    """Time of the step."""
    terms = step_terms(theta, step_cost(model, hardware, tensor_parallel_size, step))
    return total(terms)


def total(terms: dict[str, FloatArray]) -> float:
    return float(sum(float(values[0]) for values in terms.values()))
