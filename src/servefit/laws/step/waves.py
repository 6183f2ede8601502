"""A static batch whose KV cache does not fit: it runs in waves, with preemption.

The engine admits waiting prompts while their tokens fit the cache (keeping a small share free),
decodes them together, and when the cache is full evicts the request that came last; that one waits
again and is prefilled anew with all it had generated (recomputation, vLLM's default).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: Share of the KV cache that vLLM keeps free when it admits a prompt.
WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class Wave:
    """``count`` equal steps: prompts prefilled, or requests decoding on so much context."""

    count: float
    prefill_tokens: float = 0.0
    prompts: float = 0.0
    decoding: float = 0.0
    context_tokens: float = 0.0


def waves(
    batch: int, input_tokens: float, output_tokens: float, capacity_tokens: float, budget: float
) -> list[Wave]:
    """The steps that serve a static batch with a cache of ``capacity_tokens``.

    Args:
        batch: requests, all there at the start.
        input_tokens, output_tokens: lengths, the same for all.
        capacity_tokens: of the KV cache; one request at least runs, whatever it says.
        budget: prompt tokens that one step may prefill.
    """
    waiting = deque([0.0] * batch)  # tokens that each had generated before it was evicted
    running: list[float] = []
    steps: list[Wave] = []
    while waiting or running:
        free = capacity_tokens * (1 - WATERMARK) - sum(input_tokens + g for g in running)
        admitted: list[float] = []
        while waiting and (input_tokens + waiting[0] <= free or not (running or admitted)):
            free -= input_tokens + waiting[0]
            admitted.append(waiting.popleft())
        steps += _prefill([input_tokens + g for g in admitted], budget)
        running = [g for g in running + [g + 1 for g in admitted] if g < output_tokens]
        if not running:
            continue
        held = sum(input_tokens + g for g in running)
        until_done = output_tokens - max(running)
        until_full = (capacity_tokens - held) // len(running)
        if until_full < 1 and len(running) > 1:
            waiting.appendleft(running.pop())
            continue
        count = until_done if len(running) == 1 else min(until_done, until_full)
        # A step attends to what is held at its start, its newest token included.
        context = held + len(running) * (count - 1) / 2
        steps.append(Wave(count, decoding=len(running), context_tokens=context))
        running = [g + count for g in running if g + count < output_tokens]
    return steps


def _prefill(prompts: list[float], budget: float) -> list[Wave]:
    """Prompts packed in order, as many a step as fit the budget, at least one."""
    steps: list[Wave] = []
    pack: list[float] = []
    for prompt in prompts:
        if pack and sum(pack) + prompt > budget:
            steps.append(Wave(1.0, sum(pack), len(pack)))
            pack = []
        pack.append(prompt)
    if pack:
        steps.append(Wave(1.0, sum(pack), len(pack)))
    return steps
