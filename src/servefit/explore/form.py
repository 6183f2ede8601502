"""The controls of the page, in the order shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from servefit.advise import ENGINES
from servefit.calibration import Calibration
from servefit.dtypes import BYTES_PER_NUMBER
from servefit.explore.fields import Field
from servefit.hardware import catalogue
from servefit.models import list_models

#: The model's, the engine's or the fit's own.
OWN = ""
#: First part of the names of the controls of each SLO: ``slo2_ms``.
SLOS = ("slo", "slo2", "slo3")
MORE_SLOS, MEMORY, SCHEDULE = "More SLOs", "Engine memory", "Schedule"
#: Groups that are closed until asked for.
FOLDED = (MORE_SLOS, MEMORY, SCHEDULE)
LATENCIES = (("", "nothing"), ("tpot", "TPOT"), ("ttft", "TTFT"), ("e2e", "E2E"))
#: What limits an SLO: milliseconds, or its own value at a reference batch.
KINDS = (("ms", "in ms"), ("times", "× at batch"))


def controls(
    calibration: Calibration,
    *,
    models: Sequence[str] = (),
    gpus: Sequence[str] = (),
    traces: Sequence[str] = (),
    slo_ms: float = 50.0,
) -> tuple[Field, ...]:
    """Every control of the page, in the order shown.

    Args:
        calibration: what it has seen comes before the catalogue.
        models, gpus: as given on the command line; these come first.
        traces: paths of the workload traces given there.
        slo_ms: the default SLO on TPOT.
    """
    model_choices = _choices(models, [m.name for m in calibration.models], _model_names())
    gpu_choices = _choices(
        gpus, [h.name for h in calibration.hardware], [h.name for h in catalogue()]
    )
    engines = tuple((name, name) for name in ENGINES)
    formats = tuple((name, name) for name in BYTES_PER_NUMBER)
    sizes = tuple((str(n), str(n)) for n in (1, 2, 4, 8, 16))
    lengths = (("", "lengths below"), *_traces(traces))
    inputs, outputs = _middle(calibration, "input_tokens"), _middle(calibration, "output_tokens")
    most_in = _most(calibration, "input_tokens", 131072)
    most_out = _most(calibration, "output_tokens", 32768)
    mean = ("mean", "tokens")
    spread = "deviation / mean; 0: equal"
    rules = (("efficiency", "efficiency (Eq. 13)"), ("tolerance", "tolerance"))
    prompts = ((OWN, "as the engine does"), ("yes", "chunked"), ("no", "stop the decodes"))
    return (
        *_group(
            "Deployment",
            _choice("model", "Model", model_choices, "that is served"),
            _choice("gpu", "GPU", gpu_choices, "that it runs on"),
            _choice("tensor_parallel_size", "Tensor parallel", sizes, "GPUs that share a layer"),
            _choice("dtype", "Weights", ((OWN, "the model's own"), *formats), "number format"),
            _choice("kv_cache_dtype", "KV cache", ((OWN, "as weights"), *formats), "number format"),
            _choice("engine", "Engine", engines, "whose settings to print"),
        ),
        *_group(
            "Requests",
            _choice("workload", "Lengths", lengths, "of prompts and answers"),
            *_described(
                _number("input_tokens", "Input", inputs, (1, most_in, 1), *mean, log=True),
                _number("output_tokens", "Output", outputs, (1, most_out, 1), *mean, log=True),
                _number("cv_input", "Input spread", 0.0, (0, 3, 0.05), spread),
                _number("cv_output", "Output spread", 0.0, (0, 3, 0.05), spread),
                _number("correlation", "Correlation", 0.0, (-1, 1, 0.05), "of input and output"),
            ),
        ),
        *_group(
            "Objective",
            *_slo("slo", "SLO", "tpot", slo_ms),
            _number("confidence", "Confidence", 0.9, (0.5, 0.995, 0.005), "0.5: point estimate"),
            _choice("rule", "Rule", rules, "by which the cap is chosen"),
            _number("epsilon", "Epsilon", 0.1, (0, 0.99, 0.01), "of the rule"),
            _optional("rate", "Request rate", (0.001, 1e6), "gives replicas", "requests/s"),
        ),
        *_group(
            MORE_SLOS, *_slo("slo2", "SLO 2", "", 1000.0), *_slo("slo3", "SLO 3", "", 1000.0)
        ),
        *_group(
            MEMORY,
            _number("gpu_memory_utilization", "Utilisation", 0.9, (0.05, 1, 0.01), "of GPU memory"),
            _optional("other_gib", "Other memory", (0, 1000), "empty: 2 assumed", "GiB"),
            _optional("kv_capacity_tokens", "KV capacity", (1, 1e9), "empty: worked out", "tokens"),
        ),
        *_group(
            SCHEDULE,
            _choice("chunked_prefill", "Prompts", prompts, "beside running decodes"),
            _whole("max_num_batched_tokens", "Token budget", (1, 1e7), "of a step", "tokens"),
            _number("prefix_hit_rate", "Prefix hits", 0.0, (0, 1, 0.01), "share of prompt tokens"),
            _choice("pipeline_parallel_size", "Pipeline stages", sizes[:4], "that share layers"),
            _whole("draft_tokens", "Draft tokens", (0, 1000), "proposed a step, speculative"),
            _number("acceptance_rate", "Acceptance", 0.0, (0, 1, 0.01), "of each draft token"),
        ),
    )  # fmt: skip


def _described(*fields: Field) -> tuple[Field, ...]:
    """Of requests that are described by these controls, not by a trace."""
    return tuple(replace(field, needs=("workload", False)) for field in fields)


def _slo(name: str, label: str, latency: str, limit_ms: float) -> tuple[Field, ...]:
    """One SLO: of what, in what, how much; only one of the two limits counts."""
    kind, times = f"{name}_kind", "times its value at that batch"
    reference = _number(f"{name}_batch", f"{label}: reference batch", 1.0, (1, 1e6, 1))
    limits = (
        replace(_choice(kind, f"{label}: limit", KINDS), beside=name),
        replace(reference, beside=name, when=(kind, "times"), whole=True, default=1),
        replace(
            _number(f"{name}_ms", "at most", limit_ms, (0.1, 1e6, 0.1), "", "ms", log=True),
            when=(kind, "ms"),
        ),
        replace(
            _number(f"{name}_times", "at most", 2.0, (0.1, 1000, 0.1), times, log=True),
            when=(kind, "times"),
        ),
    )
    return (
        _choice(name, label, LATENCIES, "a mean, in service", default=latency),
        *(replace(field, needs=(name, True)) for field in limits),
    )


def _group(name: str, *fields: Field) -> tuple[Field, ...]:
    return tuple(replace(field, group=name) for field in fields)


def _choice(
    name: str,
    label: str,
    choices: tuple[tuple[str, str], ...],
    hint: str = "",
    default: str | None = None,
) -> Field:
    first = choices[0][0] if default is None else default
    return Field(name, label, "choice", first, hint=hint, choices=choices)


def _number(
    name: str,
    label: str,
    default: float | None,
    span: tuple[float, float, float],
    hint: str = "",
    unit: str = "",
    *,
    log: bool = False,
) -> Field:
    low, high, step = span
    return Field(
        name, label, "number", default, "", hint, unit, low=low, high=high, step=step, log=log
    )


def _optional(
    name: str, label: str, span: tuple[float, float], hint: str = "", unit: str = ""
) -> Field:
    return replace(_number(name, label, None, (*span, 1), hint, unit), optional=True)


def _whole(
    name: str, label: str, span: tuple[float, float], hint: str = "", unit: str = ""
) -> Field:
    return replace(_optional(name, label, span, hint, unit), whole=True)


def _choices(
    given: Sequence[str], seen: Sequence[str], known: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """First what was given, then what was measured, then the catalogue; each once.

    What was given by the name of something measured is that, as for `servefit advise`.
    """
    labels = {name: f"{name} (given)" for name in given}
    labels |= {name: f"{name} (measured)" for name in seen}
    labels |= {name: name for name in known if name not in labels}
    return tuple(labels.items())


def _traces(paths: Sequence[str]) -> list[tuple[str, str]]:
    """By the names of their files; by their paths where two have the same."""
    names = [Path(path).name for path in paths]
    return [
        (path, f"trace {name if names.count(name) == 1 else path}")
        for path, name in zip(paths, names, strict=True)
    ]


def _model_names() -> list[str]:
    return [name for model in list_models() for name in model.names]


def _middle(calibration: Calibration, name: str) -> float:
    """A whole length in the middle of what was measured; 256 before any was."""
    seen = calibration.ranges.get(name)
    return 256.0 if seen is None else float(round(math.sqrt(seen.low * seen.high)))


def _most(calibration: Calibration, name: str, usual: int) -> int:
    """The longest that can be asked for: the usual, or what was measured."""
    seen = calibration.ranges.get(name)
    return usual if seen is None else max(usual, math.ceil(seen.high))
