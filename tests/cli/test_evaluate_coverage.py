"""``servefit evaluate``: what the intervals hold, for runs and for single steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from servefit.hardware import get_hardware
from servefit.laws.step import StepLaw
from servefit.models import get_model
from servefit.points import EngineSteps

from .conftest import Run


@pytest.fixture
def step_times(tmp_path: Path) -> Path:
    """Decode steps that take what the priors say, with 3 % of noise; every tenth takes twice."""
    rng = np.random.default_rng(0)
    size = 60
    decodes = np.tile([1.0, 2, 4, 8, 16, 32], 10)
    context = np.repeat([200.0, 400, 800, 1600, 3200], 12)
    steps = EngineSteps(
        models=(get_model("meta-llama/Llama-2-7b-hf"),),
        hardware=(get_hardware("H100"),),
        model_index=np.zeros(size, dtype=np.int64),
        hardware_index=np.zeros(size, dtype=np.int64),
        tensor_parallel_size=np.ones(size),
        prefill_tokens=np.zeros(size),
        prefill_requests=np.zeros(size),
        prefill_kv_tokens=np.zeros(size),
        decode_requests=decodes,
        decode_context_tokens=decodes * context,
    )
    law = StepLaw()
    seconds = law.predict_steps(law.prior(), steps) * np.exp(0.03 * rng.standard_normal(size))
    seconds[5::10] *= 2
    lines = ["step_time_s,model,gpu,decode_requests,mean_decode_context_tokens"]
    lines += [
        f"{s:.6g},meta-llama/Llama-2-7b-hf,H100,{d:g},{c:g}"
        for s, d, c in zip(seconds, decodes, context, strict=True)
    ]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_coverage_counts_the_measurements_that_the_interval_holds(run: Run, runs: Path) -> None:
    arguments = ("evaluate", runs, "--law", "slim,step", "--train", "row%2=0", "--rows", "--json")
    laws = run(*arguments).json["laws"]
    for law in ("slim", "step"):
        score = laws[law]
        inside = [
            r["low_tokens_per_s"] <= r["measured_tokens_per_s"] <= r["high_tokens_per_s"]
            for r in score["rows"]
        ]
        assert score["coverage_90_count"] == sum(inside)
        assert score["coverage_90_pct"] == pytest.approx(100 * sum(inside) / score["n_test"])
        low, high = score["coverage_90_range"]
        assert 0 <= low <= 0.9 * score["n_test"] <= high <= score["n_test"]


def test_coverage_is_null_where_the_law_states_no_interval(run: Run, runs: Path) -> None:
    arguments = ("evaluate", runs, "--law", "imai", "--train", "row%2=0", "--json")
    few = run(*arguments).json["laws"]["imai"]
    assert few["throughput_mape_pct"] is not None
    assert few["coverage_90_pct"] is None
    assert few["coverage_90_range"] is None


def test_steps_are_covered_and_listed_too(run: Run, step_times: Path) -> None:
    arguments = ("evaluate", step_times, "--law", "step", "--train", "row%2=0")
    score = run(*arguments, "--rows", "--json").json["laws"]["step"]
    assert score["n_test"] == 30
    wrong = {r["row"] for r in score["rows"] if r["measured_s"] > r["high_s"]}
    assert wrong >= {5, 15, 25, 35, 45, 55}
    assert 20 <= score["coverage_90_count"] <= 24
    text = run(*arguments, "--rows").out
    assert "step times, measured against predicted" in text
    assert "above" in text
