"""Durations and sizes as people write them: ``40ms``, ``24GiB``."""

from __future__ import annotations

import math
import re

from servefit.errors import ServefitError

_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
}
_BYTES = {
    "b": 1.0,
    **{f"{prefix}b": 1e3**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024.0**power for power, prefix in enumerate("kmgt", start=1)},
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.]*)\s*")
_UNKNOWN = "-"


def parse_duration_s(text: str) -> float:
    """Seconds of ``40ms``, ``2s``, ``1.5min``; the unit must be written.

    Raises:
        ServefitError: no positive number with a unit of time.
    """
    return _parse(text, _SECONDS, "duration", "40ms or 2s")


def parse_bytes(text: str, *, or_none: bool = False) -> float:
    """Bytes of ``24GiB`` (2^30) or ``80GB`` (10^9); the unit must be written.

    Args:
        text: a number and its unit.
        or_none: whether 0 is a size too.

    Raises:
        ServefitError: no positive number with a unit of size.
    """
    examples = "24GiB (2^30 bytes) or 24GB (10^9 bytes)"
    return _parse(text, _BYTES, "size", examples, or_none=or_none)


def format_duration(seconds: float | None) -> str:
    """Three significant digits in a unit that suits: ``40.0 ms``; unknown is ``-``."""
    if seconds is None or math.isnan(seconds):
        return _UNKNOWN
    size = abs(seconds)
    if size >= 999.5 * 60:
        return f"{seconds / 3600:,.4g} h"
    if size >= 999.5:
        return f"{_digits(seconds / 60)} min"
    if size >= 0.9995 or size == 0:
        return f"{_digits(seconds)} s"
    if size >= 0.9995e-3:
        return f"{_digits(seconds * 1e3)} ms"
    return f"{_digits(seconds * 1e6)} µs"


def format_confidence(share: float) -> str:
    """A share of almost 1 in percent, never rounded to all: ``90%``, ``99.5%``."""
    return f"{100 * share:.10g}%"


def format_bytes(size: float | None) -> str:
    """Binary units, as GPU memory is counted: ``48.2 GiB``; unknown is ``-``."""
    if size is None or math.isnan(size):
        return _UNKNOWN
    for power, unit in reversed(list(enumerate(("B", "KiB", "MiB", "GiB", "TiB")))):
        if abs(size) >= 0.9995 * 1024.0**power or power == 0:
            return f"{_digits(size / 1024.0**power)} {unit}"
    raise AssertionError("unreachable")


def format_rate(per_second: float | None, what: str = "tokens") -> str:
    """``1,656 tokens/s``; unknown is ``-``."""
    if per_second is None or math.isnan(per_second):
        return _UNKNOWN
    return f"{_digits(per_second)} {what}/s"


def _digits(value: float) -> str:
    """Three significant digits, never fewer than the whole part has."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:,.{decimals}f}"


def exact(value: float) -> str:
    """A number in as few digits as are read back as the very same; whole ones without a point."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(float(value))


def _parse(
    text: str, units: dict[str, float], what: str, examples: str, *, or_none: bool = False
) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = units.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ServefitError(f"{text!r} is no {what}: write a number and its unit, as {examples}")
    value = float(match[1]) * unit
    if not (math.isfinite(value) and (value > 0 or (or_none and value == 0))):
        least = "0 or more" if or_none else "positive"
        raise ServefitError(f"{text!r}: a {what} must be {least} and finite")
    return value
