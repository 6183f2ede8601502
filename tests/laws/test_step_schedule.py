"""The closed forms of continuous batching against an engine that is simulated step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from servefit.laws import get_law
from servefit.laws.step.physics import step_terms
from servefit.laws.step.work import Steps, step_cost
from servefit.points import FloatArray, Points, Serving

from .step_models import DENSE, GPU, TYPICAL, calibration

LIVES = 10


@dataclass(frozen=True)
class Served:
    """Throughput and mean time from admission to first token."""

    tokens_per_s: float
    ttft_s: float


def simulate(batch: int, prompt: int, output: int, budget: int, *, chunked: bool) -> Served:
    """``batch`` slots; a request that ends is replaced at once, prompts wait first come first
    served. The first third is thrown away."""
    generated = np.random.default_rng(0).integers(1, output, batch)
    missing = np.zeros(batch)  # prompt tokens yet to be computed
    queue: list[int] = []
    seen: list[tuple[float, float, float, float]] = []
    ended: list[int] = []
    admitted, first_token = np.zeros(batch, dtype=int), []
    while sum(ended) < LIVES * batch:
        decoding = missing == 0
        if not chunked and queue:
            decoding[:] = False
        room = budget - decoding.sum() if chunked else prompt
        prompts = tokens = 0.0
        context = np.sum((prompt + generated)[decoding])
        seen_decoding = decoding.sum()
        generated[decoding] += 1
        while queue and room > 0:
            slot = queue[0]
            taken = min(missing[slot], room)
            room, tokens, prompts = room - taken, tokens + taken, prompts + taken / prompt
            missing[slot] -= taken
            if missing[slot] == 0:
                generated[queue.pop(0)] = 1
                first_token.append((admitted[slot], len(seen)))
        seen.append((tokens, prompts, float(seen_decoding), float(context)))
        done = np.flatnonzero((missing == 0) & (generated >= output))
        ended.append(len(done))
        missing[done], admitted[done] = prompt, len(seen)
        queue += done.tolist()
    start = len(seen) // 3
    seconds = _seconds(np.array(seen))
    clock = np.concatenate([[0.0], np.cumsum(seconds)])
    waits = [clock[last + 1] - clock[since] for since, last in first_token if since > start]
    finished = sum(ended[start:])
    return Served(finished * (prompt + output) / seconds[start:].sum(), float(np.mean(waits)))


def _seconds(seen: FloatArray) -> FloatArray:
    """Time of each simulated step by the law."""
    tokens, prompts, decoding, context = seen.T
    none, one = np.zeros(len(seen)), np.ones(len(seen))
    steps = Steps(
        np.arange(len(seen)), one, tokens, prompts, none, decoding, context, none, none, one
    )
    terms = step_terms(TYPICAL, step_cost(DENSE, GPU, 1, steps))
    return np.sum(list(terms.values()), axis=0)


CASES = [
    (32, 200, 100, 2048),
    (64, 500, 200, 2048),
    (64, 1000, 100, 2048),
    (32, 3000, 100, 2048),
    (128, 100, 400, 512),
    (16, 4000, 50, 2048),
]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize(("batch", "prompt", "output", "budget"), CASES)
def test_a_simulated_engine_agrees(
    batch: int, prompt: int, output: int, budget: int, *, chunked: bool
) -> None:
    served = simulate(batch, prompt, output, budget, chunked=chunked)
    points = Points.of(
        DENSE,
        GPU,
        input_tokens=prompt,
        output_tokens=output,
        batch=batch,
        serving=Serving.of(
            chunked_prefill=chunked, max_num_batched_tokens=budget, kv_capacity_tokens=1e12
        ),
    )
    answer = get_law("step").predict(calibration(TYPICAL), points)
    assert float(answer.total_tokens_per_s) == pytest.approx(served.tokens_per_s, rel=0.03)
    # The closed forms leave out that prompts which arrive together wait for each other.
    assert float(answer.ttft_s) == pytest.approx(served.ttft_s, rel=0.25)
