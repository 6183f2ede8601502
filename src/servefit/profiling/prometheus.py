"""The Prometheus text exposition format, as far as a profiler needs it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a metric's name, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str, names: Collection[str] | None = None) -> list[Sample]:
    """Samples of an exposition text; lines that are none are passed over.

    Args:
        text: what ``/metrics`` answered.
        names: the metrics wanted (histogram buckets are most of a page, and parsing them while
            requests stream would disturb their timestamps); ``None``: all of them.
    """
    samples = []
    for line in text.splitlines():
        if names is not None and re.split(r"[{\s]", line, maxsplit=1)[0] not in names:
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {k: _unescape(v) for k, v in _LABEL.findall(match[2] or "")}
        samples.append(Sample(match[1], labels, value))
    return samples


def _unescape(value: str) -> str:
    return re.sub(r'\\[\\"n]', lambda m: _ESCAPE[m[0]], value)
