"""From the values of the controls to what the page shows, by the functions of `servefit advise`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from servefit import api
from servefit.advise import (
    Advice,
    Infeasible,
    Slo,
    Terms,
    get_engine,
    predicted_problem,
)
from servefit.advise.advisor import deployment_limits
from servefit.advise.document import advice_as_json
from servefit.advise.words import memory_sentences, replica_sentences
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.explore.fields import Field, FieldError, controls
from servefit.hardware import Hardware
from servefit.memory import GIB
from servefit.models import ModelShape
from servefit.plain import to_plain
from servefit.points import IntArray, Points
from servefit.report.figures import interval_name, steps_title
from servefit.report.series import series
from servefit.report.source import Source
from servefit.report.view import Question, View, look
from servefit.workload import Workload

#: Up to so many caps every one is tried; of more, some and those beside the best.
EVERY_CAP, SOME_CAPS = 1500, 400
#: Each narrows 200-fold: enough for any number of caps that fits 64 bits.
ROUNDS = 9

#: What is said beside a control that leaves no cap; the whole reason stands in the answer.
NONE_FEASIBLE = "no batch cap is feasible with this"
#: What fails first -> the control to say it beside.
BESIDE = {"KV capacity": "model", "token budget": "max_num_batched_tokens", "SLO": "slo_ms"}


@dataclass(frozen=True)
class Session:
    """What was given on the command line.

    Attributes:
        calibration: what predicts.
        name: of its file, for the command to paste.
        source: measured runs, where given.
        workloads: traces, by their names.
    """

    calibration: Calibration
    name: str = "fit.json"
    source: Source | None = None
    workloads: Mapping[str, Workload] = field(default_factory=dict)

    def controls(self) -> tuple[Field, ...]:
        """The page's controls; the default SLO is twice the TPOT of a lone request."""
        fields = controls(self.calibration, traces=tuple(self.workloads))
        values = {f.name: f.default for f in fields}
        try:
            alone = api.predict(self.calibration, _points(self, values)).tpot_s
        except FieldError:
            return fields
        slo_ms = float(f"{2e3 * float(alone):.2g}") if np.isfinite(alone) else 50.0
        return controls(
            self.calibration,
            traces=tuple(self.workloads),
            slo_ms=min(max(slo_ms, 0.1), 1e6),
        )

    def decomposition(self) -> tuple[str, tuple[str, ...]]:
        """What the law decomposes, and the causes of it."""
        points = _points(self, {f.name: f.default for f in self.controls()})
        causes = tuple(api.predict(self.calibration, points).terms_s)
        return steps_title(self.calibration.law), causes


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Turn a `ServefitError` into one beside a control."""
    try:
        yield
    except ServefitError as error:
        raise FieldError({name: str(error)}) from None


def view_of(session: Session, values: Mapping[str, Any]) -> View:
    """The question that the controls ask, answered.

    Raises:
        FieldError: values that do not go together.
    """
    points = _points(session, values)
    with blamed("engine"):
        terms = Terms(
            engine=get_engine(values["engine"]),
            gpu_memory_utilization=values["gpu_memory_utilization"],
            other_bytes=None if values["other_gib"] is None else values["other_gib"] * GIB,
            max_num_batched_tokens=values["max_num_batched_tokens"],
            kv_capacity_tokens=values["kv_capacity_tokens"],
            kv_cache_dtype=values["kv_cache_dtype"] or None,
        )
    slos = [Slo(values["slo"], values["slo_ms"] * 1e-3)] if values["slo"] else []
    question = Question(
        points,
        slos,
        terms,
        rule=values["rule"],
        epsilon=values["epsilon"],
        confidence=values["confidence"],
        rate_per_s=values["rate"],
    )
    with blamed("slo"):
        return look(session.calibration, with_few_caps(session.calibration, question))


def document(session: Session, values: Mapping[str, Any]) -> dict[str, Any]:
    """All that the page shows of one configuration, in JSON's types; ``advice`` is SI.

    Raises:
        FieldError: as `view_of`.
    """
    view = view_of(session, values)
    answer = view.answer
    notes = []
    if view.question.terms.candidates is not None:
        caps = view.problem.curve.cap
        notes = [
            f"{caps[-1]:,} caps fit: {caps.size:,} of them were tried here, those beside the "
            "recommended one all; `servefit advise` tries every one"
        ]
    shown: dict[str, Any] = {
        "sentence": view.sentence,
        "series": series(view, None if session.source is None else session.source.observations),
        "interval": interval_name(view),
        "knee_batch": view.knee_batch,
        "warnings": [*notes, *view.warnings],
        "command": command(session, values),
    }
    if isinstance(answer, Infeasible):
        shown["advice"] = {
            "feasible": False,
            "constraint": answer.constraint,
            "message": answer.message,
        }
        kind = answer.constraint.partition(" ")[0] if "SLO" in answer.constraint else None
        name = BESIDE.get(kind or answer.constraint, "epsilon")
        shown["beside"] = {name: NONE_FEASIBLE}
    elif isinstance(answer, Advice):
        shown["advice"] = advice_as_json(answer, view.warnings)
        shown["memory"] = [*memory_sentences(answer), *replica_sentences(answer)]
    plain: dict[str, Any] = to_plain(shown)
    return plain


def command(session: Session, values: Mapping[str, Any]) -> str:
    """The same question for the command line."""
    words = ["servefit", "advise", session.name]
    options: dict[str, Any] = {
        "model": values["model"],
        "gpu": values["gpu"],
        "tensor-parallel-size": values["tensor_parallel_size"],
        "dtype": values["dtype"] or None,
        "kv-cache-dtype": values["kv_cache_dtype"] or None,
    }
    if values["workload"]:
        options["workload"] = values["workload"]
    elif values["cv_input"] or values["cv_output"]:
        options["workload"] = (
            f"il={values['input_tokens']:g},ol={values['output_tokens']:g},"
            f"cv_il={values['cv_input']:g},cv_ol={values['cv_output']:g},"
            f"corr={values['correlation']:g}"
        )
    else:
        options |= {name.replace("_", "-"): values[name] for name in _LENGTHS}
    if values["slo"]:
        options["slo"] = f"{values['slo']}={values['slo_ms']:.10g}ms"
    options |= {name.replace("_", "-"): values[name] for name in _PASSED_ON}
    if values["other_gib"] is not None:
        options["other-memory"] = f"{values['other_gib']:g}GiB"
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", f"{value:.10g}" if isinstance(value, float) else str(value)]
    return shlex.join(words)


_LENGTHS = ("input_tokens", "output_tokens")
_PASSED_ON = (
    "confidence",
    "rule",
    "epsilon",
    "rate",
    "engine",
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "kv_capacity_tokens",
)


def _points(session: Session, values: Mapping[str, Any]) -> Points:
    fit = session.calibration
    with blamed("correlation"):
        workload = _workload(session, values)
    with blamed("model"):
        model = _seen(fit.models, values["model"]) or api.as_model(values["model"])
    with blamed("gpu"):
        gpu = _seen(fit.hardware, values["gpu"]) or api.as_hardware(values["gpu"])
    with blamed("dtype"):
        return api.points_of(
            fit,
            model=model,
            gpu=gpu,
            input_tokens=None if workload else values["input_tokens"],
            output_tokens=None if workload else values["output_tokens"],
            workload=workload,
            batch=1.0,
            tensor_parallel_size=int(values["tensor_parallel_size"]),
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


def _seen(seen: tuple[ModelShape, ...] | tuple[Hardware, ...], name: str) -> Any:
    """The calibration's own, which need not be in the catalogue."""
    return next((each for each in seen if each.name == name), None)


def with_few_caps(calibration: Calibration, question: Question) -> Question:
    """The question with candidates that can be tried at once, where more than `EVERY_CAP` fit.

    First `SOME_CAPS` at even ratios; then, round by round, as many between the neighbours of those
    that these recommend, until every cap there is tried; last also the halves and doubles of these.
    Where throughput and latency grow with the batch, the recommendation is that among all. However
    many fit, at most 7 x `SOME_CAPS` are tried at once.
    """
    fixed = replace(question.terms, candidates=[1])
    probe = predicted_problem(calibration, question.points, (), fixed)
    limits = (*deployment_limits(probe.deployment), *probe.limits)
    largest = min((limit.max_batch for limit in limits), default=0)
    if largest <= EVERY_CAP:
        return question
    some = np.unique(np.rint(np.geomspace(1, largest, SOME_CAPS)).astype(np.int64))
    tried = some
    for _ in range(ROUNDS):
        asked = replace(question, terms=replace(question.terms, candidates=tried))
        answer = look(calibration, asked).answer
        if isinstance(answer, Infeasible):
            return asked
        found = (answer.decision.chosen, answer.point_estimate)
        best = sorted({each.batch_cap for each in found if each is not None})
        spans = [_beside(tried, cap) for cap in best]
        if all(high - low < SOME_CAPS for low, high in spans):
            break
        within = [np.linspace(low, high, SOME_CAPS).astype(np.int64) for low, high in spans]
        tried = np.unique(np.concatenate([some, *within]))
    near = [
        np.arange(max(low, cap - SOME_CAPS // 2), min(high, cap + SOME_CAPS // 2) + 1)
        for cap, (low, high) in zip(best, spans, strict=True)
    ]
    every = np.concatenate([some, *(part for n in near for part in (n, n // 2, n * 2))])
    every = np.unique(every[(every >= 1) & (every <= largest)])
    return replace(question, terms=replace(question.terms, candidates=every))


def _beside(tried: IntArray, cap: int) -> tuple[int, int]:
    """The tried caps on either side of one of them."""
    at = int(np.searchsorted(tried, cap))
    return int(tried[max(at - 1, 0)]), int(tried[min(at + 1, tried.size - 1)])
