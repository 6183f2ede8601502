"""What the server logs of engines have in common: facts by pattern, first or last match."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from servefit.importers.fields import to_number
from servefit.importers.point import Point, Value, excerpt

GIB = 1024.0**3

#: As much of a line as is searched; the longest are lists of arguments.
MAX_LOGGED = 20_000


@dataclass(frozen=True)
class Fact:
    """A column in a log.

    Attributes:
        column: the column.
        pattern: its group 1 is the value.
        convert: from the text to the column's unit; ``None`` if it is unknown.
        how: the conversion, for explanations.
    """

    column: str
    pattern: re.Pattern[str]
    convert: Callable[[str], Value | None] = to_number
    how: str = ""


@dataclass
class Sampled:
    """Mean and peak of a number that a log repeats."""

    count: int = 0
    total: float = 0.0
    peak: float = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        self.total += value
        self.peak = max(self.peak, value)


def gibibytes(text: str) -> float | None:
    """Bytes of a number of GiB."""
    value = to_number(text)
    return None if value is None else value * GIB


def text(value: str) -> str | None:
    """A quoted or bare word; ``None`` for what says unknown or automatic."""
    bare = value.strip().strip("'\"").removeprefix("torch.")
    return None if bare.lower() in ("none", "auto", "") else bare


def switch(value: str) -> bool | None:
    """``True`` or ``False``."""
    return {"true": True, "false": False}.get(value.strip().lower())


def take_facts(point: Point, line: str, number: int, facts: Iterable[Fact]) -> None:
    """Read every fact of a line; the first that is found stays."""
    for fact in facts:
        if fact.column not in point.readings and (match := fact.pattern.search(line)):
            value = fact.convert(match[1])
            point.put(fact.column, value, f"line {number}", excerpt(match[0]), fact.how)


def put_sampled(point: Point, name: str, sampled: Sampled, what: str) -> None:
    """Mean and peak as extra columns."""
    if sampled.count:
        how = f"of {sampled.count} lines of {what}"
        point.put(f"{name}_mean", sampled.total / sampled.count, what, "", f"mean {how}")
        point.put(f"{name}_peak", sampled.peak, what, "", f"peak {how}")


def setting(name: str) -> re.Pattern[str]:
    """``name=value`` of a Namespace, or ``'name': value`` of a dict."""
    return re.compile(rf"(?<![\w]){name}['\"]?[=:] ?((?:'[^']*'|\"[^\"]*\"|[^,)}}\s]+))")


def say_failure(point: Point, number: int, cause: str, line: str) -> None:
    """Why a server did not start, or lost requests: the first line of each cause."""
    if not any(v.check == "failure" and cause in v.message for v in point.verdicts):
        point.say("failure", "flagged", f"line {number}: {cause} ({excerpt(line, 120)})")
