"""Invented runs: OPT models on an invented law, T = B (IL + OL) / E2E exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from servefit.models import get_model
from servefit.runs.table import RunTable, table_from_rows
from servefit.study.bench import Bench, bench_of

MODELS = ("facebook/opt-125m", "facebook/opt-350m", "facebook/opt-1.3b")
OUTPUTS = (32, 64, 128)
CAPS = (1, 2, 4, 8, 16, 32, 64, 128)


def e2e_s(model: str, input_tokens: float, output_tokens: float, batch: float) -> float:
    """Prefill, and decode steps that stream the weights and the KV cache."""
    shape = get_model(model)
    step = 1e-3 + shape.weight_bytes / 1.6e12 + 2e-5 * batch
    step += batch * (input_tokens + output_tokens / 2) * shape.kv_bytes_per_token / 1.4e12
    return ttft_s(model, input_tokens, batch) + (output_tokens - 1) * step


def ttft_s(model: str, input_tokens: float, batch: float) -> float:
    return 2e-3 + 2 * get_model(model).num_parameters * batch * input_tokens / 4e14


def run(
    model: str, input_tokens: int, output_tokens: int, cap: int, **other: Any
) -> dict[str, Any]:
    seconds = e2e_s(model, input_tokens, output_tokens, cap)
    first = ttft_s(model, input_tokens, cap)
    row = {
        "model": model,
        "gpu": "H100-64GB",
        "dtype": "float16",
        "engine": "vllm",
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "max_num_seqs": cap,
        "mean_batch": float(cap),
        "total_tokens_per_s": cap * (input_tokens + output_tokens) / seconds,
        "e2e_mean_s": seconds,
        "tpot_mean_s": (seconds - first) / (output_tokens - 1),
        "duration_s": 200 * seconds / cap,
        "preemptions": 0,
    }
    return {**row, **other}


def table(rows: Sequence[dict[str, Any]]) -> RunTable:
    return table_from_rows(rows, "invented")


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    return [run(m, 64, ol, cap) for m in MODELS for ol in OUTPUTS for cap in CAPS]


@pytest.fixture(scope="session")
def bench(rows: list[dict[str, Any]]) -> Bench:
    return bench_of(table(rows), ("preempted=false",))
