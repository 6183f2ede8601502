"""Engine steps: what was in each, how long it took, and the table they make."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["context", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What one engine step computed.

    Attributes:
        prefill_tokens: prompt tokens computed.
        prefill_requests: prompts that they belong to.
        prefill_kv_tokens: tokens of those prompts that were in the KV cache before.
        decode_requests: requests that computed one token after their prompt.
        decode_context_tokens: tokens that all of these had in the KV cache before.
    """

    prefill_tokens: int = 0
    prefill_requests: int = 0
    prefill_kv_tokens: int = 0
    decode_requests: int = 0
    decode_context_tokens: int = 0

    @property
    def phase(self) -> Phase:
        """``context`` (only prefill), ``decode``, or both."""
        if not self.prefill_requests:
            return "decode"
        return "mixed" if self.decode_requests else "context"

    @property
    def requests(self) -> int:
        """Requests that the step worked on."""
        return self.prefill_requests + self.decode_requests

    @property
    def live_tokens(self) -> int:
        """Tokens that these have in the KV cache after the step."""
        prefill = self.prefill_kv_tokens + self.prefill_tokens
        return prefill + self.decode_context_tokens + self.decode_requests

    def as_row(self) -> dict[str, Any]:
        """The shape in the columns of the table of steps."""
        n = self.decode_requests
        return {
            "phase": self.phase,
            "prefill_tokens": self.prefill_tokens,
            "prefill_requests": self.prefill_requests,
            "prefill_kv_tokens": self.prefill_kv_tokens,
            "decode_requests": n,
            "mean_decode_context_tokens": self.decode_context_tokens / n if n else 0.0,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """A step and its time by the wall clock: scheduling, forward pass, sampling, outputs."""

    shape: StepShape
    time_s: float


def shape_of(
    scheduled: Mapping[str, int], computed: Mapping[str, int], input_tokens: int
) -> StepShape:
    """The shape of a step over requests whose prompts all have ``input_tokens``.

    A request is in prefill as long as tokens of its prompt are not yet computed.

    Args:
        scheduled: tokens that the step computes, by request.
        computed: tokens that were in the KV cache before, by request.
        input_tokens: length of every prompt.
    """
    prefill = [r for r in scheduled if computed[r] < input_tokens]
    decode = [r for r in scheduled if computed[r] >= input_tokens]
    return StepShape(
        prefill_tokens=sum(scheduled[r] for r in prefill),
        prefill_requests=len(prefill),
        prefill_kv_tokens=sum(computed[r] for r in prefill),
        decode_requests=len(decode),
        decode_context_tokens=sum(computed[r] for r in decode),
    )


def time_by_phase(steps: Iterable[Step]) -> dict[Phase, float]:
    """Seconds spent in each phase."""
    total: dict[Phase, float] = {"context": 0.0, "decode": 0.0, "mixed": 0.0}
    for step in steps:
        total[step.shape.phase] += step.time_s
    return total


def step_rows(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """A row for each distinct shape, in order of appearance: the median time over its steps."""
    times: dict[StepShape, list[float]] = {}
    for step in steps:
        times.setdefault(step.shape, []).append(step.time_s)
    return [
        {"step_time_s": statistics.median(values), **shape.as_row(), "n": len(values)}
        for shape, values in times.items()
    ]
