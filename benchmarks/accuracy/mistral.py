"""Mistral on the vLLM of mid-2024: what if every query head reads its own copy of the KV cache?

vLLM's PagedAttention "V1" kernel ran where ``num_seqs x heads on the rank`` exceeded 512, one
thread block a sequence and query head; models with a sliding window went to the backend that uses
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.accuracy.settings import Setting, score
from servefit.evaluation import RowScore
from servefit.laws.step import StepLaw
from servefit.laws.step import law as law_module
from servefit.laws.step.work import Cost, Steps, cost_of
from servefit.models import ModelShape

V1_ABOVE = 512
MISTRAL = "mistralai/Mistral-7B-v0.1"


def errors_pct(
    gpu: str, tensor_parallel_size: int, factor: float
) -> tuple[float | None, float | None]:
    """Mean signed error of throughput, where V1 runs and where not, with KV reads x ``factor``.

    The law is fitted on Llama-2-7B on the same GPU at every TP.
    """
    setting = Setting(
        name="Mistral",
        title="",
        file="static_batch_vllm_2024/runs.csv",
        where=(f"gpu={gpu}", f"model=meta-llama/Llama-2-7b-hf,{MISTRAL}"),
        train=("model=meta-llama/Llama-2-7b-hf",),
        test=(f"model={MISTRAL}", f"tensor_parallel_size={tensor_parallel_size}"),
    )

    def repeated(steps: Steps, models: Sequence[ModelShape], *rest: Any) -> Cost:
        cost = cost_of(steps, tuple(models), *rest)
        model_index, t = rest[1][steps.row], rest[3][steps.row]
        heads = np.array([m.num_attention_heads for m in models])[model_index]
        is_mistral = np.array([m.name == MISTRAL for m in models])[model_index]
        v1 = is_mistral & (steps.decode_requests * heads / t > V1_ABOVE)
        return replace(cost, kv_s=np.where(v1, factor * cost.kv_s, cost.kv_s))

    with (
        patch.object(law_module, "cost_of", repeated),
        patch.object(law_module, "discrepancies", lambda *_: {}),
    ):
        rows = [r for r in score(setting, StepLaw()).rows if isinstance(r, RowScore)]
    # 32 query heads.
    with_v1 = [r.error_pct for r in rows if r.batch * 32 / tensor_parallel_size > V1_ABOVE]
    others = [r.error_pct for r in rows if r.batch * 32 / tensor_parallel_size <= V1_ABOVE]
    return _mean(with_v1), _mean(others)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
