"""What was given on the command line, and the question that the controls ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from servefit import api
from servefit.advise import Terms, get_engine, parse_slos
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.explore.fields import Field, FieldError
from servefit.explore.form import SLOS, controls
from servefit.hardware import Hardware, catalogue
from servefit.memory import GIB
from servefit.models import ModelShape, list_models
from servefit.points import Points, Serving
from servefit.report.figures import steps_title
from servefit.report.source import Source
from servefit.report.view import Question
from servefit.units import exact
from servefit.workload import Workload

CHUNKED = {"": None, "yes": True, "no": False}


@dataclass(frozen=True)
class Session:
    """What was given on the command line.

    Attributes:
        calibration: what predicts.
        name: of its file, for the command to paste.
        source: measured runs, where given.
        workloads: traces, by their paths as given.
        models, gpus: those given besides, by the text that they were given as.
    """

    calibration: Calibration
    name: str = "fit.json"
    source: Source | None = None
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    models: Mapping[str, ModelShape] = field(default_factory=dict)
    gpus: Mapping[str, Hardware] = field(default_factory=dict)

    def controls(self) -> tuple[Field, ...]:
        """The page's controls; the default SLO is twice the TPOT of a lone request."""
        described = partial(
            controls,
            self.calibration,
            models=tuple(self.models),
            gpus=tuple(self.gpus),
            traces=tuple(self.workloads),
        )
        values = {f.name: f.default for f in described()}
        try:
            alone = api.predict(self.calibration, points_asked(self, values)).tpot_s
        except (FieldError, ServefitError):
            return described()
        slo_ms = float(f"{2e3 * float(alone):.2g}") if np.isfinite(alone) else 50.0
        return described(slo_ms=min(max(slo_ms, 0.1), 1e6))

    def decomposition(self) -> tuple[str, tuple[str, ...]]:
        """What the law decomposes, and the causes of it; none where it predicts for no GPU."""
        fields = self.controls()
        values = {f.name: f.default for f in fields}
        title = steps_title(self.calibration.law)
        for gpu, _ in next(f.choices for f in fields if f.name == "gpu"):
            with suppress(FieldError, ServefitError):
                points = points_asked(self, {**values, "gpu": gpu})
                return title, tuple(api.predict(self.calibration, points).terms_s)
        return title, ()

    def model(self, name: str) -> ModelShape:
        """One of the choices: seen, given, or of the catalogue; no file is read."""
        seen = [model for model in self.calibration.models if model.name == name]
        if len(seen) == 1:
            return seen[0]
        if name in self.models:
            return api.as_seen(self.calibration, self.models[name])
        known = [m.shape(name) for m in list_models() if name in m.names]
        return [*known, *seen][0]

    def gpu(self, name: str) -> Hardware:
        """The same of the accelerators."""
        seen = [gpu for gpu in self.calibration.hardware if gpu.name == name]
        if len(seen) == 1:
            return seen[0]
        if name in self.gpus:
            return self.gpus[name]
        known = [gpu for gpu in catalogue() if gpu.name == name]
        return [*known, *seen][0]


@contextmanager
def blamed(*names: str) -> Iterator[None]:
    """Turn a `ServefitError` into one beside controls."""
    try:
        yield
    except ServefitError as error:
        raise FieldError(dict.fromkeys(names, str(error))) from None


def question_asked(session: Session, values: Mapping[str, Any]) -> Question:
    """The question that the controls ask.

    Raises:
        FieldError: values that do not go together.
    """
    other = values["other_gib"]
    points = points_asked(session, values)
    return Question(
        points,
        parse_slos(slo_texts(values).values()),
        Terms(
            engine=get_engine(values["engine"]),
            gpu_memory_utilization=values["gpu_memory_utilization"],
            other_bytes=None if other is None else other * GIB,
            max_num_batched_tokens=values["max_num_batched_tokens"],
            kv_capacity_tokens=values["kv_capacity_tokens"],
            kv_cache_dtype=values["kv_cache_dtype"] or None,
        ),
        rule=values["rule"],
        epsilon=values["epsilon"],
        confidence=values["confidence"],
        rate_per_s=values["rate"],
        workload=_workload(session, values),
    )


def slo_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Each SLO that is asked for, by its control, as ``servefit advise --slo`` takes it."""
    limits = {
        name: f"{exact(values[f'{name}_ms'])}ms"
        if values[f"{name}_kind"] == "ms"
        else f"{exact(values[f'{name}_times'])}x@{values[f'{name}_batch']}"
        for name in SLOS
        if values[name]
    }
    return {name: f"{values[name]}={limit}" for name, limit in limits.items()}


def points_asked(session: Session, values: Mapping[str, Any]) -> Points:
    """Model, GPU, lengths and schedule; raises `FieldError` for what does not go together."""
    with blamed("correlation"):
        workload = _workload(session, values)
    with blamed("acceptance_rate"):
        serving = Serving.of(
            chunked_prefill=CHUNKED[values["chunked_prefill"]],
            prefix_hit_rate=values["prefix_hit_rate"],
            pipeline_parallel_size=int(values["pipeline_parallel_size"]),
            draft_tokens=values["draft_tokens"] or 0,
            acceptance_rate=values["acceptance_rate"],
        )
    with blamed("dtype"):
        return api.points_of(
            session.calibration,
            model=session.model(values["model"]),
            gpu=session.gpu(values["gpu"]),
            input_tokens=None if workload else values["input_tokens"],
            output_tokens=None if workload else values["output_tokens"],
            workload=workload,
            batch=1.0,
            tensor_parallel_size=int(values["tensor_parallel_size"]),
            serving=serving,
            dtype=values["dtype"] or None,
            kv_cache_dtype=values["kv_cache_dtype"] or None,
        )


def _workload(session: Session, values: Mapping[str, Any]) -> Workload | None:
    """A trace given on the command line, lengths that vary, or ``None``: all requests equal."""
    if values["workload"]:
        return session.workloads[values["workload"]]
    if not (values["cv_input"] or values["cv_output"] or values["correlation"]):
        return None
    return Workload.from_moments(
        values["input_tokens"],
        values["output_tokens"],
        cv_input=values["cv_input"],
        cv_output=values["cv_output"],
        correlation=values["correlation"],
    )
