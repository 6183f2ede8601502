"""An invented model, curve and calibration."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from servefit.advise import Curve
from servefit.advise.curve import LATENCIES
from servefit.calibration import Calibration
from servefit.hardware import Hardware
from servefit.models import AttentionGroup, ModelShape, Parts
from servefit.parameters import FittedParameter

GIB = 2**30
GPU = Hardware("gpu", {"float16": 1e15}, 2e12, 64 * GIB)


def make_model(
    *, layers: int = 24, heads: int = 32, kv_heads: int = 32, window: int | None = None
) -> ModelShape:
    """2 layers x kv_heads x 64 x 2 x 2 bytes a token; about 1.2e9 parameters with the defaults."""
    width = heads * 64
    return ModelShape(
        name="invented",
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        vocab_size=32_000,
        attention=(
            AttentionGroup(layers, kv_heads, 64, window_tokens=window, num_query_heads=heads),
        ),
        parameters=Parts(
            attention=4 * width * width * layers,
            recurrent=0,
            ffn=8 * width * width * layers,
            experts=0,
            other_matrices=0,
            embedding=32_000 * width,
            lm_head=0,
            lookups=0,
            vectors=0,
        ),
        ffn_size=4 * width,
        num_ffn_matrices=2,
        weight_dtype="float16",
        kv_cache_dtype="float16",
    )


MODEL = make_model()


def make_curve(
    caps: npt.ArrayLike,
    throughput: npt.ArrayLike,
    *,
    single: float = 1.0,
    confidence: float | None = None,
    margin: float = 1.0,
    **latency_s: npt.ArrayLike,
) -> Curve:
    """A curve; latencies that are not given are unknown, bounds are latencies x ``margin``."""
    cap = np.asarray(caps, dtype=np.int64)
    tokens_per_s = np.asarray(throughput, dtype=np.float64)
    latency = {
        name: np.broadcast_to(np.asarray(latency_s.get(name, np.nan), dtype=float), cap.shape)
        for name in LATENCIES
    }
    return Curve(
        cap=cap,
        batch=cap.astype(float),
        total_tokens_per_s=tokens_per_s,
        latency_s=latency,
        latency_bound_s={name: margin * seconds for name, seconds in latency.items()},
        throughput_bound=tokens_per_s / margin,
        input_tokens=100,
        output_tokens=28,
        single_tokens_per_s=single,
        confidence=confidence,
    )


def slim(degrees_of_freedom: int = 10, residual_sd: float | None = 0.05) -> Calibration:
    """SLIM with invented parameters and a known covariance."""
    values = {
        "eta_c": 0.45,
        "eta_m": 0.7,
        "alpha": 2e-5,
        "gamma": 2e-7,
        "B0": 40.0,
        "t_fixed": 0.02,
    }
    covariance = tuple(tuple(1e-4 * (i == j) for j in range(6)) for i in range(6))
    return Calibration(
        law="slim",
        parameters=tuple(FittedParameter(name, "", value) for name, value in values.items()),
        settings={"decode_form": "product"},
        log_covariance=covariance if residual_sd is not None else None,
        residual_sd=residual_sd,
        degrees_of_freedom=degrees_of_freedom,
    )
