"""Beside which control it is said that no batch cap is feasible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servefit.advise import Infeasible, Slo
from servefit.errors import ServefitError
from servefit.explore.caps import largest_cap
from servefit.explore.fields import FieldError
from servefit.explore.session import Session, question_asked, slo_texts

#: What the room for KV blocks depends on, the likeliest slip first.
KV_CONTROLS = (
    "kv_capacity_tokens",
    "other_gib",
    "gpu_memory_utilization",
    "workload",
    "input_tokens",
    "output_tokens",
    "cv_output",
    "cv_input",
    "correlation",
    "kv_cache_dtype",
    "dtype",
    "engine",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "gpu",
    "model",
)


def blame(
    session: Session, values: Mapping[str, Any], answer: Infeasible, slos: tuple[Slo, ...]
) -> str:
    """The control that the first failing constraint is of.

    Where requests find no room in the KV cache: the first of `KV_CONTROLS` whose default, in place
    of its value, makes room for one by itself; the model where none does.

    Args:
        session: see `Session`.
        values: of the controls.
        answer: why nothing is feasible.
        slos: the limits in the order of their controls.
    """
    if answer.constraint == "KV capacity":
        return _without_room(session, values)
    if answer.constraint == "token budget":
        return "max_num_batched_tokens"
    for name, slo in zip(slo_texts(values), slos, strict=True):
        if answer.constraint == f"SLO {slo}":
            return f"{name}_{values[f'{name}_kind']}"
    return "epsilon" if answer.constraint == "efficiency" else "gpu"


def _without_room(session: Session, values: Mapping[str, Any]) -> str:
    defaults = {field.name: field.default for field in session.controls()}
    for name in KV_CONTROLS:
        if values[name] != defaults[name]:
            try:
                asked = question_asked(session, {**values, name: defaults[name]})
                room = largest_cap(session.calibration, asked)
            except (FieldError, ServefitError):
                continue
            if room >= 1:
                return name
    return "model"
