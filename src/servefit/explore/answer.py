"""From the values of the controls to what the page shows, by the functions of `servefit advise`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from servefit.advise import Advice, Infeasible
from servefit.advise.document import advice_as_json
from servefit.advise.servable import UnservableError
from servefit.advise.words import memory_sentences, replica_sentences
from servefit.errors import ServefitError
from servefit.explore.blame import blame
from servefit.explore.caps import with_few_caps
from servefit.explore.fields import FieldError
from servefit.explore.session import Session, question_asked, slo_texts
from servefit.plain import to_plain
from servefit.report.figures import interval_name
from servefit.report.matching import matching
from servefit.report.series import series
from servefit.report.view import View, look
from servefit.units import exact

#: What is said beside a control that leaves no cap; the whole reason stands in the answer.
NONE_FEASIBLE = "no batch cap is feasible with this"
#: Options that are left out of the command at these values, their usual ones.
SCHEDULE = {
    "max_num_batched_tokens": None,
    "prefix_hit_rate": 0.0,
    "pipeline_parallel_size": "1",
    "draft_tokens": None,
    "acceptance_rate": 0.0,
}


def view_of(session: Session, values: Mapping[str, Any]) -> View:
    """The question that the controls ask, answered.

    Raises:
        FieldError: values that do not go together.
    """
    question = question_asked(session, values)
    try:
        return look(session.calibration, with_few_caps(session.calibration, question))
    except UnservableError as error:
        lengths = error.option in ("input_tokens", "output_tokens")
        name = "workload" if lengths and values["workload"] else error.option
        raise FieldError({name: str(error)}) from None
    except ServefitError as error:
        raise FieldError({_beside(values, str(error)): str(error)}) from None


def _beside(values: Mapping[str, Any], message: str) -> str:
    """The control that a message is of; ``""``: of them all."""
    for name, text in slo_texts(values).items():
        if f"SLO {text}:" in message or f"SLO {values[name].upper()} " in message:
            return name
    if re.search(r"\b(GPU|peaks|accelerator)", message):
        return "gpu"
    return "rule" if re.search(r"\b(rule|epsilon)\b|T\(1\)", message) else ""


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
            f"{caps[-1]:,} caps fit: {caps.size:,} of them were tried here, all those that an SLO, "
            "a limit or epsilon turns on; `servefit advise` tries every one"
        ]
    observations = None if session.source is None else session.source.observations
    if observations is not None:
        found = matching(view, observations)
        notes += [] if found.drawn.any() else [found.sentence.removesuffix(".")]
    shown: dict[str, Any] = {
        "sentence": view.sentence,
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
        name = blame(session, values, answer, view.problem.slos)
        shown["beside"] = {name: NONE_FEASIBLE}
    elif isinstance(answer, Advice):
        shown["advice"] = advice_as_json(answer, view.warnings)
        shown["memory"] = [*memory_sentences(answer), *replica_sentences(answer)]
    return {**to_plain(shown), "series": series(view, observations)}


def command(session: Session, values: Mapping[str, Any]) -> str:
    """The same question for the command line."""
    other = values["other_gib"]
    options: list[tuple[str, Any]] = [
        *_by_name(values, "model", "gpu", "tensor_parallel_size", "dtype", "kv_cache_dtype"),
        *_lengths(values),
        *(("slo", text) for text in slo_texts(values).values()),
        *_by_name(values, "confidence", "rule", "epsilon", "rate", "engine"),
        *_by_name(values, "gpu_memory_utilization", "kv_capacity_tokens"),
        ("other-memory", None if other is None else f"{exact(other)}GiB"),
        *_by_name(values, *(name for name, usual in SCHEDULE.items() if values[name] != usual)),
    ]
    words = ["servefit", "advise", session.name]
    for name, value in options:
        if value not in (None, ""):
            words += [f"--{name}", exact(value) if isinstance(value, float) else str(value)]
    chunked = {"yes": ["--chunked-prefill"], "no": ["--no-chunked-prefill"]}
    return shlex.join([*words, *chunked.get(values["chunked_prefill"], [])])


def _lengths(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    if values["workload"]:
        return [("workload", values["workload"])]
    if not (values["cv_input"] or values["cv_output"]):
        return _by_name(values, "input_tokens", "output_tokens")
    moments = {
        "il": "input_tokens",
        "ol": "output_tokens",
        "cv_il": "cv_input",
        "cv_ol": "cv_output",
        "corr": "correlation",
    }
    return [("workload", ",".join(f"{k}={exact(values[name])}" for k, name in moments.items()))]


def _by_name(values: Mapping[str, Any], *names: str) -> list[tuple[str, Any]]:
    return [(name.replace("_", "-"), values[name]) for name in names]
