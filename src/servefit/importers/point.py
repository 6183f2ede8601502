"""A point of measurement on its way into the table of runs, and how each number was read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from servefit.runs.schema import COLUMNS

Value = str | float | int | bool
Outcome = Literal["agrees", "corrected", "flagged", "refused"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One value of a column, in the column's unit.

    Attributes:
        value: the value.
        source: key, line or label in the file; ``--set`` or ``derived``.
        raw: what stands there.
        how: how the value follows from it, such as ``ms / 1000``; empty where it is the same.
    """

    value: Value
    source: str
    raw: str = ""
    how: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one check found.

    Attributes:
        check: name of the check.
        outcome: ``agrees``; ``corrected``: a value was replaced; ``flagged``: odd, and kept;
            ``refused``: the point is no row.
        message: the numbers compared, and the reason.
    """

    check: str
    outcome: Outcome
    message: str


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A setting that only a name or a neighbouring file tells: used once it is confirmed.

    Attributes:
        column: the column.
        value: its value.
        why: where it comes from.
    """

    column: str
    value: Value
    why: str


@dataclass
class Point:
    """One point: what a file says of one load, or (``is_run`` false) of a server's state.

    Attributes:
        format: the tool and kind of file.
        file, where: the file, and the place in it.
        readings: column -> reading; columns of `servefit.runs.schema`, and extra ones.
        verdicts: what the checks found, in their order.
        suggestions: settings to confirm.
        notes: remarks on how the file was read, for ``--explain``.
        is_run: whether it can become a row.
    """

    format: str
    file: str
    where: str = ""
    readings: dict[str, Reading] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_run: bool = True

    def number(self, column: str) -> float | None:
        """The value of a column as a float; ``None`` if unknown or no number."""
        reading = self.readings.get(column)
        if reading is None or isinstance(reading.value, str | bool):
            return None
        return float(reading.value)

    def numbers(self, *columns: str) -> tuple[float, ...] | None:
        """The values of all the columns; ``None`` if any is unknown."""
        values = tuple(v for c in columns if (v := self.number(c)) is not None)
        return values if len(values) == len(columns) else None

    def has(self, *columns: str) -> bool:
        """Whether all the columns are known."""
        return all(column in self.readings for column in columns)

    def put(
        self, column: str, value: Value | None, source: str, raw: object = "", how: str = ""
    ) -> None:
        """Set a column; the first reading stays. ``None``, NaN and what no value of the column
        can be (a time of 0, a negative count) leave it unknown."""
        if value is None or column in self.readings:
            return
        if isinstance(value, int | float) and not _possible(column, value):
            self.notes.append(f"{column}: {source} = {excerpt(raw or value)}: taken for unknown")
            return
        self.readings[column] = Reading(value, source, excerpt(raw), how)

    def derive(self, column: str, value: float | None, how: str) -> None:
        """Set a column that is unknown from others, by the formula ``how``."""
        self.put(column, value, "derived", "", how)

    def correct(self, column: str, value: Value, check: str, message: str) -> None:
        """Replace a value, for a stated reason."""
        self.readings[column] = Reading(value, "corrected", self.shown(column), message)
        self.say(check, "corrected", message)

    def suggest(self, column: str, value: Value, why: str) -> None:
        """Offer a setting, unless the column is known or has an offer."""
        if column not in self.readings and all(s.column != column for s in self.suggestions):
            self.suggestions.append(Suggestion(column, value, why))

    def move(self, column: str, to: str) -> None:
        """File a reading under another column."""
        reading = self.readings.pop(column, None)
        if reading is not None:
            self.readings[to] = reading

    def say(self, check: str, outcome: Outcome, message: str) -> None:
        """Add a verdict, once."""
        verdict = Verdict(check, outcome, message)
        if verdict not in self.verdicts:
            self.verdicts.append(verdict)

    def shown(self, column: str) -> str:
        """The value of a column as text; empty if unknown."""
        reading = self.readings.get(column)
        if reading is None:
            return ""
        return f"{reading.value:.6g}" if isinstance(reading.value, float) else str(reading.value)

    @property
    def refused(self) -> bool:
        """Whether a check refused it."""
        return any(v.outcome == "refused" for v in self.verdicts)

    @property
    def place(self) -> str:
        """File and place in it."""
        return f"{self.file}: {self.where}" if self.where else self.file


def _possible(column: str, value: float) -> bool:
    """Whether a number can be a value of a column: finite, and in the range of the schema."""
    if not math.isfinite(value):
        return False
    known = COLUMNS["runs"].get(column)
    if known is None:
        return value >= 0
    return (
        (known.above is None or value > known.above)
        and (known.at_least is None or value >= known.at_least)
        and (known.at_most is None or value <= known.at_most)
    )


def excerpt(value: object, limit: int = 60) -> str:
    """A value as one line of text, cut to ``limit`` characters; nested ones by their size."""
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value)}"
    text = " ".join(str(value)[: 4 * limit].split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
