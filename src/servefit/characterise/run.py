"""A static batch from first principles: prefill, then a decode step a token, on the roofline.

The first token comes from the prefill step. The decode step that yields token y of each of B
requests attends to A = B (IL + y) tokens, the active context (Eq. 3); the last one to B (IL + OL).
Kernels run one after another, each at the roofline's least time: those of an engine that wastes
nothing. One that fuses small kernels into others may do with less of the class "other".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from servefit.characterise.work import (
    CLASSES,
    Work,
    decode_step,
    peaks,
    prefill_step,
    total,
    work_by_class,
)
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.laws.step.work import Steps
from servefit.models import ModelShape
from servefit.points import FloatArray


@dataclass(frozen=True, order=True)
class Size:
    """A static batch: requests, and the lengths of each in tokens."""

    batch: int
    input_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        """Refuse what is not positive."""
        for name in ("batch", "input_tokens", "output_tokens"):
            if getattr(self, name) < 1:
                raise ServefitError(f"{name} = {getattr(self, name)}: must be at least 1")

    @property
    def active_context_tokens(self) -> int:
        """A at the final step: B (IL + OL)."""
        return self.batch * (self.input_tokens + self.output_tokens)

    @property
    def label(self) -> str:
        """``B 4, IL 256, OL 256``."""
        return f"B {self.batch}, IL {self.input_tokens}, OL {self.output_tokens}"


@dataclass(frozen=True)
class PhaseWork:
    """One phase of a run on the roofline of one rank.

    Attributes:
        work: FLOPs and bytes by class, with an entry a step.
        seconds: least seconds by class, likewise.
        flops_per_s, bytes_per_s: the accelerator's peaks.
    """

    work: Mapping[str, Work]
    seconds: Mapping[str, FloatArray]
    flops_per_s: float
    bytes_per_s: float

    @property
    def step_seconds(self) -> FloatArray:
        """Least time of each step."""
        return np.asarray(sum(self.seconds.values()))

    @property
    def bandwidth_share(self) -> FloatArray:
        """Of each step: bytes / (BW x its time)."""
        return np.asarray(total(self.work).bytes / (self.bytes_per_s * self.step_seconds))

    @property
    def flops_share(self) -> FloatArray:
        """Of each step: FLOPs / (F x its time)."""
        return np.asarray(total(self.work).flops / (self.flops_per_s * self.step_seconds))

    def share(self, name: str) -> FloatArray:
        """Of each step's time, the class's."""
        return np.asarray(self.seconds[name] / self.step_seconds)

    @property
    def mean_shares(self) -> dict[str, float]:
        """Share of the phase's whole time by class; nothing where it has no step."""
        whole = float(self.step_seconds.sum())
        return {n: float(s.sum()) / whole for n, s in self.seconds.items()} if whole else {}


@dataclass(frozen=True)
class Run:
    """A static batch: its prefill step, and its decode steps in order (none where OL = 1).

    ``active_context_tokens`` has an entry a decode step.
    """

    size: Size
    prefill: PhaseWork
    decode: PhaseWork
    active_context_tokens: FloatArray

    @property
    def prefill_s(self) -> float:
        """Least time of prefill."""
        return float(self.prefill.step_seconds.sum())

    @property
    def decode_s(self) -> float:
        """Least time of all decode steps."""
        return float(self.decode.step_seconds.sum())


def phase_work(
    model: ModelShape, hardware: Hardware, steps: Steps, tensor_parallel_size: int = 1
) -> PhaseWork:
    """Steps on the roofline of one rank; raises `ServefitError` where a peak is unknown."""
    flops_per_s, bytes_per_s = peaks(hardware, model.weight_dtype)
    works = work_by_class(model, steps, tensor_parallel_size)
    seconds = {n: works[n].seconds(hardware, model.weight_dtype) for n in CLASSES}
    return PhaseWork(works, seconds, flops_per_s, bytes_per_s)


def steps_of(size: Size, decode_tokens: Sequence[int] | None = None) -> tuple[Steps, Steps]:
    """The prefill step of a batch, and its decode steps: all, or those that yield these tokens."""
    tokens = range(2, size.output_tokens + 1) if decode_tokens is None else decode_tokens
    contexts = size.input_tokens + np.array(tokens, dtype=np.float64)
    batch = np.full(1, float(size.batch))
    prefill = prefill_step(batch, np.full(1, float(size.input_tokens)))
    return prefill, decode_step(np.full_like(contexts, size.batch), contexts)


def run(model: ModelShape, hardware: Hardware, size: Size, tensor_parallel_size: int = 1) -> Run:
    """A static batch on the roofline; raises `ServefitError` where a peak is unknown."""
    prefill, decode = steps_of(size)
    return Run(
        size=size,
        prefill=phase_work(model, hardware, prefill, tensor_parallel_size),
        decode=phase_work(model, hardware, decode, tensor_parallel_size),
        active_context_tokens=decode.decode_context_tokens,
    )


def grid(
    batches: Iterable[int], input_tokens: Iterable[int], output_tokens: Iterable[int]
) -> list[Size]:
    """Every combination, in order of the lists given."""
    inputs, outputs = list(input_tokens), list(output_tokens)
    return [Size(b, i, o) for b in batches for i in inputs for o in outputs]
