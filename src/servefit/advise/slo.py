"""Service-level objectives on mean latencies."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servefit.advise.curve import LATENCIES
from servefit.errors import ServefitError
from servefit.units import format_duration, parse_duration_s

_EXAMPLES = "tpot=40ms, e2e=2s, ttft=200ms or e2e=1.5x@32"
_PERCENTILE = re.compile(r"(?:^|[^a-z0-9])p\d|\dth\b|percentile|median|(?:^|[^a-z])(?:max|tail)")


@dataclass(frozen=True)
class Reference:
    """The point whose latency a relative SLO is a multiple of; ``None`` is as asked for.

    Attributes:
        batch: requests that run at once.
        input_tokens, output_tokens: lengths.
    """

    batch: float
    input_tokens: float | None = None
    output_tokens: float | None = None


@dataclass(frozen=True)
class Slo:
    """An upper limit on a mean latency.

    Attributes:
        latency: one of `servefit.advise.curve.LATENCIES`.
        limit_s: the limit, which itself is allowed.
        origin: how the limit came about, where it was not given in seconds.
    """

    latency: str
    limit_s: float
    origin: str = ""

    def __str__(self) -> str:
        """As printed: ``TPOT <= 40.0 ms``."""
        return f"{self.latency.upper()} <= {format_duration(self.limit_s)}"


@dataclass(frozen=True)
class RelativeSlo:
    """An SLO that is a multiple of the latency at a reference point, as in the paper's Fig. 12."""

    latency: str
    multiple: float
    reference: Reference
    text: str

    def resolve(self, latency_at: Callable[[str, Reference], float]) -> Slo:
        """The absolute SLO, given the latency at the reference point.

        Raises:
            ServefitError: that latency is unknown.
        """
        try:
            base_s = latency_at(self.latency, self.reference)
        except ServefitError as error:
            raise ServefitError(f"SLO {self.text}: {error}") from None
        if not (math.isfinite(base_s) and base_s > 0):
            raise ServefitError(
                f"SLO {self.text}: the {self.latency.upper()} of its reference point is unknown; "
                "give the limit in seconds"
            )
        origin = f"{self.multiple:g} x {format_duration(base_s)} at {_describe(self.reference)}"
        return Slo(self.latency, self.multiple * base_s, origin)


def parse_slos(texts: Iterable[str]) -> list[Slo | RelativeSlo]:
    """SLOs from texts such as ``tpot=40ms,e2e=2s``.

    A limit is a duration with its unit, or a multiple of a reference point of the same curve:
    ``e2e=1.5x@32`` is 1.5 times the E2E at batch 32, and
    ``e2e=2x@batch=32,input_tokens=2,output_tokens=128`` names other lengths too.

    Raises:
        ServefitError: a percentile, an unknown latency, or a limit that makes no sense.
    """
    return [_parse(item) for text in texts for item in _split(text)]


def _split(text: str) -> list[str]:
    """Split at commas, except before what continues a reference point."""
    items: list[str] = []
    for part in text.split(","):
        key = part.partition("=")[0].strip()
        if key in ("batch", "input_tokens", "output_tokens") and items and "@" in items[-1]:
            items[-1] += f",{part.strip()}"
        else:
            items.append(part.strip())
    return items


def _parse(text: str) -> Slo | RelativeSlo:
    name, separator, value = text.partition("=")
    name, value = name.strip().lower(), value.strip()
    if _PERCENTILE.search(text.lower()):
        raise ServefitError(
            f"SLO {text!r}: a percentile cannot be promised, the laws predict means; give a mean "
            f"such as {_EXAMPLES}, with the margin that your percentile needs"
        )
    if name not in LATENCIES or not separator or not value:
        raise ServefitError(
            f"SLO {text!r}: give one of {', '.join(LATENCIES)} and a limit, such as {_EXAMPLES}"
        )
    multiple, at, reference = value.partition("@")
    if not at:
        if re.fullmatch(r"[-+.\deE]+\s*x", value):
            raise ServefitError(
                f"SLO {text!r}: a multiple needs its reference batch, such as {name}={value}@32"
            )
        try:
            return Slo(name, parse_duration_s(value))
        except ServefitError as error:
            raise ServefitError(f"SLO {text!r}: {error}") from None
    factor = multiple.strip().lower()
    if not factor.endswith("x"):
        raise ServefitError(
            f"SLO {text!r}: write a multiple of a reference point as {name}=1.5x@32"
        )
    return RelativeSlo(name, _positive(factor[:-1], text), _parse_reference(reference, text), text)


def _parse_reference(reference: str, text: str) -> Reference:
    values: dict[str, float] = {}
    for part in reference.split(","):
        key, separator, number = part.partition("=")
        if not separator:
            key, number = "batch", part
        key = key.strip()
        if key not in ("batch", "input_tokens", "output_tokens") or key in values:
            raise ServefitError(
                f"SLO {text!r}: a reference point is a batch, or "
                "batch=32,input_tokens=2,output_tokens=128"
            )
        values[key] = _positive(number, text)
    if "batch" not in values:
        raise ServefitError(f"SLO {text!r}: the reference point names no batch; add batch=32")
    return Reference(**values)


def _positive(number: str, text: str) -> float:
    try:
        value = float(number)
    except ValueError:
        raise ServefitError(f"SLO {text!r}: {number.strip()!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise ServefitError(f"SLO {text!r}: {number.strip()} must be positive and finite")
    return value


def _describe(reference: Reference) -> str:
    parts = [f"batch {reference.batch:g}"]
    if reference.input_tokens is not None:
        parts.append(f"input {reference.input_tokens:g}")
    if reference.output_tokens is not None:
        parts.append(f"output {reference.output_tokens:g}")
    return ", ".join(parts)
