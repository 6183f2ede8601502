"""Synthetic models and runs."""

from __future__ import annotations

import numpy as np
import pytest

from servefit.calibration import Calibration
from servefit.hardware import Hardware
from servefit.laws import Observations, predict
from servefit.models import AttentionGroup, ModelShape, Parts
from servefit.parameters import FittedParameter
from servefit.points import Points


def make_model(name: str, layers: int, width: int, ffn: int) -> ModelShape:
    heads = width // 64
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        vocab_size=32_000,
        attention=(AttentionGroup(layers, heads, 64, num_query_heads=heads),),
        parameters=Parts(
            attention=4 * width * width * layers,
            recurrent=0,
            ffn=2 * width * ffn * layers,
            experts=0,
            other_matrices=0,
            embedding=32_000 * width,
            lm_head=0,
            lookups=0,
            vectors=0,
        ),
        ffn_size=ffn,
        num_ffn_matrices=2,
        weight_dtype="float16",
        kv_cache_dtype="float16",
    )


SMALL = make_model("small", 12, 1024, 4096)
LARGE = make_model("large", 32, 4096, 16384)
GPU = Hardware("gpu", {"float16": 1e15}, 2e12, 64 * 2**30)


def slim_calibration(**values: float) -> Calibration:
    truth = {
        "eta_c": 0.45,
        "eta_m": 0.7,
        "alpha": 2e-5,
        "gamma": 2e-7,
        "B0": 40.0,
        "t_fixed": 0.02,
    } | values
    return Calibration(
        law="slim",
        parameters=tuple(FittedParameter(k, "", v) for k, v in truth.items()),
        settings={"decode_form": "product"},
    )


def synthetic_runs(calibration: Calibration, models: tuple[ModelShape, ...]) -> Observations:
    grid = np.array(
        [
            (m, il, ol, b)
            for m in range(len(models))
            for il in (64, 512, 2048)
            for ol in (32, 256, 1024)
            for b in (1, 4, 16, 64, 256)
        ]
    )
    points = Points(
        models=models,
        hardware=(GPU,),
        model_index=grid[:, 0],
        hardware_index=np.zeros(len(grid), dtype=np.int64),
        input_tokens=grid[:, 1].astype(float),
        output_tokens=grid[:, 2].astype(float),
        batch=grid[:, 3].astype(float),
        tensor_parallel_size=np.ones(len(grid)),
    )
    answer = predict(calibration, points)
    return Observations(
        points, answer.total_tokens_per_s, answer.e2e_s, np.arange(len(grid), dtype=np.int64)
    )


@pytest.fixture(params=["product", "sum"])
def decode_form(request: pytest.FixtureRequest) -> str:
    return str(request.param)
