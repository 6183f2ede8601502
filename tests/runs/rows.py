"""Invented rows that agree with themselves, to be broken one cell at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from servefit.runs.check import check
from servefit.runs.schema import Kind
from servefit.runs.table import RunTable, table_from_rows

SERVED: Mapping[str, Any] = {
    "model": "facebook/opt-1.3b",
    "gpu": "H100-64GB",
    "tensor_parallel_size": 1,
    "dtype": "float16",
    "input_tokens": 200.0,
    "output_tokens": 101.0,
    "mean_batch": 10.0,
    "peak_batch": 12,
    "max_num_seqs": 12,
    "num_gpu_blocks": 1000,
    "block_size": 16,
    "num_requests": 100,
    "completed": 100,
    "duration_s": 20.0,
    "requests_per_s": 5.0,
    "total_tokens_per_s": 1505.0,
    "output_tokens_per_s": 505.0,
    "e2e_mean_s": 2.0,
    "ttft_mean_s": 0.1,
    "tpot_mean_s": 0.019,
    "itl_mean_s": 0.019,
    "mean_live_tokens": 2500.0,
    "mean_kv_usage": 0.15625,
    "preemptions": 0,
}

STATIC: Mapping[str, Any] = {
    "model": "facebook/opt-1.3b",
    "gpu": "H100-64GB",
    "dtype": "float16",
    "mode": "static_batch",
    "input_tokens": 100.0,
    "output_tokens": 101.0,
    "batch": 8,
    "e2e_mean_s": 1.608,
    "total_tokens_per_s": 1000.0,
}

STEP: Mapping[str, Any] = {
    "model": "Qwen/Qwen3-32B",
    "tensor_parallel_size": 2,
    "phase": "decode",
    "prefill_tokens": 0,
    "prefill_requests": 0,
    "prefill_kv_tokens": 0,
    "decode_requests": 16,
    "mean_decode_context_tokens": 3000.0,
    "step_time_s": 0.015,
}


def checked(row: Mapping[str, Any], kind: Kind = "runs", **changes: Any) -> RunTable:
    """The check of one row with some cells changed; ``None`` empties a cell."""
    return checked_all([{**row, **changes}], kind)


def checked_all(rows: Sequence[Mapping[str, Any]], kind: Kind = "runs") -> RunTable:
    """The check of some rows."""
    return check(table_from_rows(rows, "rows.csv", kind))


def found(table: RunTable) -> list[tuple[str, str]]:
    """(severity, column) of each problem, in order."""
    return [(problem.severity, problem.column) for problem in table.problems]
