"""Engine steps: what was in each, how long it took, and the table they make."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from servefit.hardware.measure import UNDISTURBED_SHARE

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
    """A step and its time by the wall clock: scheduling, forward pass, sampling, outputs.

    Attributes:
        shape: what it computed.
        time_s: from call to return.
        waited_s: of that, what the calling thread waited for a core that something else ran on.
    """

    shape: StepShape
    time_s: float
    waited_s: float = 0.0

    @property
    def undisturbed(self) -> bool:
        """Whether the thread had its core (nearly) to itself."""
        return self.waited_s <= UNDISTURBED_SHARE * self.time_s


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
    """A row for each distinct shape, in order of appearance: the median time over its steps.

    Steps that waited for a core are left out, ``left_out`` says how many; where all of a shape did,
    all are kept and the row is flagged.
    """
    by_shape: dict[StepShape, list[Step]] = {}
    for step in steps:
        by_shape.setdefault(step.shape, []).append(step)
    rows = []
    for shape, same in by_shape.items():
        alone = [step for step in same if step.undisturbed]
        used = alone or same
        rows.append(
            {
                "step_time_s": statistics.median(step.time_s for step in used),
                **shape.as_row(),
                "n": len(used),
                "left_out": len(same) - len(used),
                "flags": None if alone else "disturbed",
            }
        )
    return rows
