"""The controls of the page: what each may hold, and reading them from a query string."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from servefit.advise import ENGINES
from servefit.calibration import Calibration
from servefit.dtypes import BYTES_PER_NUMBER
from servefit.errors import ServefitError
from servefit.hardware import catalogue
from servefit.models import list_models

#: A longer text is none that a control sends.
MAX_TEXT = 200
#: The model's, the engine's or the fit's own.
OWN = ""


@dataclass(frozen=True)
class Field:
    """A control.

    Attributes:
        name: in the query string.
        label, unit, group, hint: as shown.
        kind: ``"choice"`` is one of ``choices``; ``"number"`` is within ``low`` and ``high``.
        default: value of a control that the query string does not name; ``None`` is unset.
        choices: value and label of each.
        low, high, step: of a number; ``log`` makes the slider's steps ratios.
        optional: whether it may be left empty.
        whole: whether it must be an integer.
    """

    name: str
    label: str
    kind: Literal["choice", "number"]
    default: Any = None
    group: str = ""
    hint: str = ""
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    low: float = 0.0
    high: float = 1.0
    step: float = 1.0
    log: bool = False
    optional: bool = False
    whole: bool = False

    def parse(self, text: str) -> Any:
        """The value; raises `ServefitError` with value, limit and remedy."""
        if self.kind == "choice":
            if text not in (value for value, _ in self.choices):
                raise ServefitError(f"{shortened(text)} is none of the choices: pick one")
            return text
        if not text.strip():
            if self.optional:
                return None
            raise ServefitError(f"give a number from {self.low:g} to {self.high:g}")
        try:
            value = float(text)
        except ValueError:
            raise ServefitError(f"{shortened(text)} is not a number") from None
        if not math.isfinite(value) or not self.low <= value <= self.high:
            raise ServefitError(f"{value:g} is outside {self.low:g} to {self.high:g}")
        if self.whole and value != round(value):
            raise ServefitError(f"{value:g} is not a whole number")
        return int(value) if self.whole else value


@dataclass
class FieldError(Exception):
    """What is wrong with which control; the key ``""`` is of them all together."""

    errors: dict[str, str]


def shortened(text: str, most: int = 40) -> str:
    """A text from outside, quoted and cut."""
    return repr(text if len(text) <= most else text[:most] + "...")


def read(fields: Sequence[Field], items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values of all controls from a query string; what is not named has its default.

    Raises:
        FieldError: everything that is wrong, not just the first.
    """
    known = {field.name: field for field in fields}
    values = {field.name: field.default for field in fields}
    errors: dict[str, str] = {}
    seen: set[str] = set()
    for name, text in items:
        if name not in known:
            errors[""] = f"there is no control {shortened(name)}"
        elif name in seen:
            errors[name] = "given more than once"
        elif len(text) > MAX_TEXT:
            errors[name] = f"a text of {len(text)} characters: at most {MAX_TEXT}"
        else:
            try:
                values[name] = known[name].parse(text)
            except ServefitError as error:
                errors[name] = str(error)
        seen.add(name)
    if errors:
        raise FieldError(errors)
    return values


def controls(
    calibration: Calibration, *, traces: Sequence[str] = (), slo_ms: float = 50.0
) -> tuple[Field, ...]:
    """Every control of the page, in the order shown.

    Args:
        calibration: what it has seen comes first, and is the default.
        traces: names of the workload traces given on the command line.
        slo_ms: the default SLO on TPOT.
    """
    models = _with_seen([m.name for m in calibration.models], _model_names())
    gpus = _with_seen([h.name for h in calibration.hardware], [h.name for h in catalogue()])
    formats = tuple((name, name) for name in BYTES_PER_NUMBER)
    sizes = tuple((str(n), str(n)) for n in (1, 2, 4, 8, 16))
    lengths = (("", "lengths below"), *((name, f"trace {name}") for name in traces))
    latencies = (("", "nothing"), ("tpot", "TPOT"), ("ttft", "TTFT"), ("e2e", "E2E"))
    rules = (("efficiency", "efficiency (Eq. 13)"), ("tolerance", "tolerance"))
    engines = tuple((name, name) for name in ENGINES)
    inputs, outputs = _middle(calibration, "input_tokens"), _middle(calibration, "output_tokens")
    spread = "standard deviation / mean; 0: all equal"
    return (
        *_group(
            "Deployment",
            _choice("model", "Model", models),
            _choice("gpu", "GPU", gpus),
            _choice("tensor_parallel_size", "Tensor parallelism", sizes, "GPUs of one replica"),
            _choice("dtype", "Weights", ((OWN, "the model's own"), *formats)),
            _choice("kv_cache_dtype", "KV cache", ((OWN, "as the weights"), *formats)),
        ),
        *_group(
            "Requests",
            _choice("workload", "Lengths", lengths),
            _number("input_tokens", "Input", inputs, (1, 131072, 1), "mean", "tokens", log=True),
            _number("output_tokens", "Output", outputs, (1, 32768, 1), "mean", "tokens", log=True),
            _number("cv_input", "Spread of inputs", 0.0, (0, 3, 0.05), spread),
            _number("cv_output", "Spread of outputs", 0.0, (0, 3, 0.05), spread),
            _number("correlation", "Correlation", 0.0, (-1, 1, 0.05), "of input and output"),
        ),
        *_group(
            "Objective",
            _choice("slo", "SLO on", latencies, "a mean, in service", default="tpot"),
            _number("slo_ms", "at most", slo_ms, (0.1, 1e6, 0.1), "", "ms", log=True),
            _number(
                "confidence", "Confidence", 0.9, (0.5, 0.995, 0.005), "0.5: the point estimate"
            ),
            _choice("rule", "Rule", rules),
            _number("epsilon", "Epsilon", 0.1, (0, 0.99, 0.01), "of the rule"),
            _optional("rate", "Request rate", (0.001, 1e6, 0.1), "gives replicas", "requests/s"),
        ),
        *_group(
            "Engine",
            _choice("engine", "Engine", engines),
            _number(
                "gpu_memory_utilization", "Memory utilisation", 0.9, (0.05, 1, 0.01), "its share"
            ),
            _optional("other_gib", "Other memory", (0, 1000, 0.1), "empty: 2 assumed", "GiB"),
            _optional(
                "max_num_batched_tokens", "Token budget", (1, 1e7, 1), "of a step", "tokens",
                whole=True,
            ),
            _optional(
                "kv_capacity_tokens", "KV capacity", (1, 1e9, 1), "empty: worked out", "tokens"
            ),
        ),
    )  # fmt: skip


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
    name: str,
    label: str,
    span: tuple[float, float, float],
    hint: str = "",
    unit: str = "",
    *,
    whole: bool = False,
) -> Field:
    number = _number(name, label, None, span, hint, unit)
    return replace(number, optional=True, whole=whole)


def _with_seen(seen: Sequence[str], known: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Choices: those that were measured come first and say so."""
    first = tuple((name, f"{name} (measured)") for name in seen)
    return first + tuple((name, name) for name in known if name not in seen)


def _model_names() -> list[str]:
    return [name for model in list_models() for name in model.names]


def _middle(calibration: Calibration, name: str) -> float:
    """A whole length in the middle of what was measured; 256 before any was."""
    seen = calibration.ranges.get(name)
    return 256.0 if seen is None else float(round(math.sqrt(seen.low * seen.high)))
