"""Measured and predicted, class by class: whether a model is right for the right reason.

    measured        class                     formula                    term of the step law
    attention       attention kernels         attention of the phase     KV cache (decode)
    GEMM            GEMM, GEMV, MoE kernels   projections, FFN, LM head  weights, compute
    other           every other kernel        other                      communication
    unclassified    kernels no rule knows     -                          -
    CPU/idle        wall time without kernel  -                          overhead

All times are those of one step, the mean over the phase's steps. The law's compute term holds the
prompts' attention as well, so that in prefill it stands against attention and GEMM together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from servefit.calibration import Calibration
from servefit.characterise.classify import ATTENTION, GEMM, OTHER, OUTSIDE, UNCLASSIFIED
from servefit.characterise.profile import DECODE, PREFILL, Part, Profile, StepTime, grouped
from servefit.characterise.run import PhaseWork, Size, phase_work, steps_of
from servefit.characterise.work import (
    ATTENTION_DECODE,
    ATTENTION_PREFILL,
    FFN,
    LM_HEAD,
    PROJECTIONS,
)
from servefit.characterise.work import OTHER as OTHER_WORK
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, Hardware
from servefit.laws.step.law import StepLaw
from servefit.laws.step.parameters import completed
from servefit.laws.step.physics import step_terms
from servefit.laws.step.work import Steps, step_cost
from servefit.models import ModelShape

#: Group of measured kernels -> classes of the formula, and terms of the step law.
_FORMULA: Mapping[str, tuple[str, ...]] = {
    ATTENTION: (ATTENTION_DECODE, ATTENTION_PREFILL),
    GEMM: (PROJECTIONS, FFN, LM_HEAD),
    OTHER: (OTHER_WORK,),
}
_TERMS: Mapping[str, tuple[str, ...]] = {
    ATTENTION: ("KV cache",),
    GEMM: ("weights", "compute"),
    OTHER: ("communication",),
    OUTSIDE: ("overhead",),
}


@dataclass(frozen=True)
class Line:
    """One group of kernels in one phase of one batch; ``None`` is unknown or undefined.

    Attributes:
        size, phase, group: what it is of.
        measured_s: a step's time in it.
        measured_share: of the step.
        flops, bytes: of a step by formula.
        roofline_s: least time of these at the peaks.
        law_s: what the calibrated step law has for it.
    """

    size: Size
    phase: str
    group: str
    measured_s: float | None = None
    measured_share: float | None = None
    flops: float | None = None
    bytes: float | None = None
    roofline_s: float | None = None
    law_s: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes by formula over measured time."""
        return self.bytes / self.measured_s if self.bytes and self.measured_s else None

    @property
    def flops_per_s(self) -> float | None:
        """FLOPs by formula over measured time."""
        return self.flops / self.measured_s if self.flops and self.measured_s else None


def lines_of(
    profiles: Sequence[Profile],
    model: ModelShape | None = None,
    hardware: Hardware | None = None,
    calibration: Calibration | None = None,
    tensor_parallel_size: int = 1,
) -> list[Line]:
    """The table of all batches and phases that the profiles hold, in order of active context.

    Without a model, the formula's and the law's columns stay unknown; without known peaks, the
    roofline's. Parts whose batch or phase neither file nor user tells have no place in it.

    Raises:
        ServefitError: the calibration is not of the step law, or needs a model.
    """
    if calibration is not None and (calibration.law != StepLaw.name or model is None):
        raise ServefitError(
            f"calibration of law {calibration.law!r}: its terms stand beside measured classes for "
            "the law step, and need --model"
        )
    found: list[Line] = []
    for (size, phase), (times, marked) in _measured(profiles).items():
        if size is None or phase not in (PREFILL, DECODE):
            continue
        work, law = None, {}
        if model is not None:
            steps = _steps(size, phase, marked)
            known = hardware if hardware and hardware.has_known_peaks else _ANY
            work = phase_work(model, known, steps, tensor_parallel_size)
            law = _law(calibration, model, hardware, steps, tensor_parallel_size)
        count = len(marked)
        whole = sum(times.values())
        for group, seconds in grouped(times).items():
            if group == OUTSIDE and OUTSIDE not in times:
                continue
            if group == UNCLASSIFIED and not seconds:
                continue
            formula = _FORMULA.get(group, ())
            terms = [law[t] for t in _TERMS.get(group, ()) if t in law]
            found.append(
                Line(
                    size,
                    phase,
                    group,
                    measured_s=seconds / count if count else None,
                    measured_share=seconds / whole if whole else None,
                    flops=_mean(work, "flops", formula),
                    bytes=_mean(work, "bytes", formula),
                    roofline_s=_mean(work, "seconds", formula) if _known(hardware) else None,
                    law_s=sum(terms) if terms else None,
                )
            )
    order = {PREFILL: 0, DECODE: 1}
    return sorted(
        found, key=lambda r: (r.size.active_context_tokens, r.size, order.get(r.phase, 2))
    )


def _measured(
    profiles: Sequence[Profile],
) -> dict[Part, tuple[dict[str, float], list[StepTime]]]:
    """Seconds by class, and marked steps (none: unmarked), of each part over all profiles."""
    found: dict[Part, tuple[dict[str, float], list[StepTime]]] = {}
    for profile in profiles:
        for part in profile.parts:
            times, marked = found.setdefault(part, ({}, []))
            for name, seconds in profile.seconds_by_class(part).items():
                times[name] = times.get(name, 0.0) + seconds
            marked += profile.steps_of(part)
    return found


def _steps(size: Size, phase: str, marked: Sequence[StepTime]) -> Steps:
    """What was measured, as the formula counts it: of decode, the steps that are marked, or all."""
    tokens = [step.token for step in marked if step.token is not None]
    prefill, decode = steps_of(size, tokens if tokens and len(tokens) == len(marked) else None)
    return prefill if phase == PREFILL else decode


#: Stands in where peaks are unknown: FLOPs and bytes do not depend on them.
_ANY = Hardware("any", {"bfloat16": 1.0}, 1.0)


def _known(hardware: Hardware | None) -> bool:
    return hardware is not None and hardware.has_known_peaks


def _mean(work: PhaseWork | None, what: str, classes: Sequence[str]) -> float | None:
    """Mean over steps of the classes' FLOPs, bytes or seconds; ``None`` without steps."""
    if work is None or not classes or not work.step_seconds.size:
        return None
    if what == "seconds":
        return float(np.sum([work.seconds[c].mean() for c in classes]))
    return float(np.sum([getattr(work.work[c], what).mean() for c in classes]))


def _law(
    calibration: Calibration | None,
    model: ModelShape,
    hardware: Hardware | None,
    steps: Steps,
    tensor_parallel_size: int,
) -> dict[str, float]:
    """Terms of the calibrated law, mean over the steps; nothing without a calibration or steps."""
    if calibration is None or not steps.count.size:
        return {}
    theta = completed({p.name: p.value for p in calibration.parameters})
    cost = step_cost(model, hardware or UNKNOWN, tensor_parallel_size, steps)
    return {name: float(np.mean(seconds)) for name, seconds in step_terms(theta, cost).items()}
