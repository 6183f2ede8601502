"""How well any law could do: repeats, near repeats, and the law fitted on what it is tested on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy.settings import Setting, selected
from servefit import api
from servefit.laws import Law, Observations, StepObservations
from servefit.observations import observe, observe_steps


def static_repeats() -> tuple[int, float, float]:
    """Pairs of repeated static runs: how many, mean and largest difference of E2E in percent."""
    rows = selected("static_batch_vllm_2024/runs.csv", ())
    keys = zip(
        rows.texts("model"),
        rows.texts("gpu"),
        rows.numbers("tensor_parallel_size"),
        rows.numbers("input_tokens"),
        rows.numbers("batch"),
        strict=True,
    )
    cells = _cells(keys, rows.numbers("e2e_mean_s"))
    pairs = [100 * abs(v[1] / v[0] - 1) for v in cells if len(v) > 1]
    return len(pairs), float(np.mean(pairs)), float(np.max(pairs))


def step_cells(phase: str) -> tuple[int, float, float]:
    """Steps of nearly the same shape: rows, mean and 90 % quantile of their spread in percent.

    Decode steps count as the same with one TP and number of requests and contexts within 3 %; mixed
    ones with prefill tokens within 64, decode requests within 4 and cached tokens within 1,000.
    """
    rows = selected("step_times_vllm_qwen3_32b/steps.csv", (f"phase={phase}",))
    keys = [rows.numbers("tensor_parallel_size")]
    if phase == "decode":
        context = np.log1p(rows.numbers("mean_decode_context_tokens"))
        keys += [rows.numbers("decode_requests"), np.round(context / 0.03)]
    else:
        keys += [rows.numbers("prefill_requests"), rows.numbers("decode_requests") // 4]
        keys += [rows.numbers("prefill_tokens") // 64, rows.numbers("prefill_kv_tokens") // 1000]
    cells = _cells(zip(*keys, strict=True), rows.numbers("step_time_s"))
    spread = 100 * np.concatenate([np.abs(c / np.median(c) - 1) for c in cells if len(c) > 2])
    return len(spread), float(np.mean(spread)), float(np.quantile(spread, 0.9))


def floor_pct(setting: Setting, law: Law) -> float | None:
    """The law's error on the tested rows when it is fitted on these very rows.

    What remains is noise and what the law's form cannot say: no transfer does better.
    """
    rows = selected(setting.file, (*setting.where, *setting.test))
    gpu = api.as_hardware(setting.gpu)
    observations: Observations | StepObservations
    if setting.has_step_times:
        observations = observe_steps(rows.frame, gpu=gpu)
    else:
        observations = observe(
            rows.frame,
            batch_from=setting.batch_from,
            context_from=setting.context_from,
            gpu=gpu,
        ).observations
    errors = law.fit(observations).train_mape_pct
    return errors["step_time_s" if setting.has_step_times else "total_tokens_per_s"]


def _cells(
    keys: Iterable[Hashable], values: npt.NDArray[np.float64]
) -> list[npt.NDArray[np.float64]]:
    cells: dict[Hashable, list[float]] = defaultdict(list)
    for key, value in zip(keys, values.tolist(), strict=True):
        cells[key].append(value)
    return [np.array(c) for c in cells.values()]
