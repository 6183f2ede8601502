"""Speed of the parts that a user waits for. Reports numbers; never a pass/fail test."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# One core, as the numbers are stated per core; must be set before numpy is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from servefit.calibration import Calibration
from servefit.hardware import get_hardware
from servefit.laws import LAWS, Observations, predict
from servefit.models import get_model
from servefit.parameters import FittedParameter
from servefit.points import Points

REPEATS = 5
TRUTH = {"eta_c": 0.45, "eta_m": 0.7, "alpha": 2e-5, "gamma": 2e-7, "B0": 40.0, "t_fixed": 0.02}


def best_s(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """Shortest wall time of several runs: the one that the machine disturbed least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def truth() -> Calibration:
    parameters = tuple(FittedParameter(name, "", value) for name, value in TRUTH.items())
    return Calibration(law="slim", parameters=parameters, settings={"decode_form": "product"})


def hundred_rows() -> Observations:
    rng = np.random.default_rng(0)
    points = Points(
        models=tuple(get_model(name) for name in ("facebook/opt-1.3b", "facebook/opt-6.7b")),
        hardware=(get_hardware("H100"),),
        model_index=rng.integers(0, 2, 100),
        hardware_index=np.zeros(100, dtype=np.int64),
        input_tokens=rng.integers(16, 2048, 100).astype(float),
        output_tokens=rng.integers(16, 1024, 100).astype(float),
        batch=rng.integers(1, 512, 100).astype(float),
        tensor_parallel_size=np.ones(100),
    )
    answer = predict(truth(), points)
    noise = 1 + 0.03 * rng.standard_normal(100)
    return Observations(
        points=points,
        total_tokens_per_s=answer.total_tokens_per_s * noise,
        e2e_s=answer.e2e_s / noise,
        rows=np.arange(100),
    )


def measure() -> dict[str, float]:
    model, gpu = get_model("facebook/opt-6.7b"), get_hardware("H100")
    axis = np.linspace(1, 1024, 100)
    grid = Points.of(
        model,
        gpu,
        input_tokens=axis[:, None, None],
        output_tokens=axis[None, :, None],
        batch=np.arange(1, 101)[None, None, :],
    )
    rng = np.random.default_rng(0)
    scattered = Points.of(
        model,
        gpu,
        input_tokens=rng.uniform(1, 1024, 1_000_000),
        output_tokens=rng.uniform(2, 1024, 1_000_000),
        batch=rng.uniform(1, 512, 1_000_000),
    )
    results = {
        "predict_grid_points_per_s": 1e6 / best_s(lambda: predict(truth(), grid)),
        "predict_scattered_points_per_s": 1e6 / best_s(lambda: predict(truth(), scattered)),
    }
    runs = hundred_rows()
    for name, law in LAWS.items():
        law.fit(runs)  # imports scipy
        results[f"fit_100_rows_{name}_s"] = best_s(lambda law=law: law.fit(runs))
    results["cold_help_s"] = best_s(lambda: servefit("--help"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "fit.json")
        file.write_text(LAWS["slim"].fit(runs).to_json())
        advise = ["advise", str(file), "--model", "facebook/opt-6.7b", "--slo", "tpot=40ms"]
        advise += ["--input-tokens", "250", "--output-tokens", "390"]
        results["cold_advise_s"] = best_s(lambda: servefit(*advise))
    return results


def servefit(*arguments: str) -> None:
    command = [sys.executable, "-m", "servefit", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    results = measure()
    if as_json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), **results}))
        return
    for name, value in results.items():
        print(f"{name:36} {value:,.3f}" if value < 1e3 else f"{name:36} {value:,.0f}")


if __name__ == "__main__":
    main()
