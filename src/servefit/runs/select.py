"""Row selection: ``--where``, ``--train`` and ``--test``.

    key=v1,v2    the value is one of these
    key=lo..hi   the value lies in this range, ends included; either end may be left out
    key!=...     the value is known and is none of these
    key=null     the value is unknown
    row%2=0      the position in the file, from 0, has this remainder

Several selections all have to hold. Values with commas, or that should not be read as ``null`` or
a range, go in double quotes. Nothing is evaluated.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from servefit.errors import ServefitError
from servefit.runs.schema import COLUMNS, FILE, ROW, resolve
from servefit.runs.table import RunTable

BoolArray = npt.NDArray[np.bool_]

_CONDITION = re.compile(
    r"\s*(?P<key>[^=!%]+?)\s*(%\s*(?P<modulus>\d+)\s*)?(?P<op>!?=)(?P<values>.*)", re.DOTALL
)
_VALUE = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^,"]*))\s*(?:,|$)')


@dataclass(frozen=True, slots=True)
class _Value:
    text: str
    quoted: bool

    @property
    def is_null(self) -> bool:
        return self.text == "null" and not self.quoted

    @property
    def is_range(self) -> bool:
        return ".." in self.text and not self.quoted


@dataclass(frozen=True, slots=True)
class Condition:
    """One ``key=values``; ``text`` is how it was written."""

    text: str
    key: str
    modulus: int | None
    negated: bool
    values: tuple[_Value, ...]

    def mask(self, frame: pl.DataFrame) -> BoolArray:
        """Which rows of ``frame`` it matches; raises `ServefitError` if it cannot apply."""
        column, divisor = self._column(frame)
        is_null = column.is_null().to_numpy()
        matches = np.zeros(frame.height, dtype=bool)
        wants_null = False
        for value in self.values:
            if value.is_null:
                wants_null = True
            elif column.dtype.is_numeric():
                matches |= self._match_number(column, divisor, value)
            elif value.is_range:
                raise ServefitError(
                    f"{self.text!r}: {self.key} holds text, a range needs numbers: put the value "
                    "in double quotes to match it exactly"
                )
            elif column.dtype == pl.Boolean:
                if value.text.lower() not in ("true", "false"):
                    raise ServefitError(f"{self.text!r}: {self.key} is either true or false")
                wanted = value.text.lower() == "true"
                matches |= (column == wanted).fill_null(False).to_numpy()
            else:
                matches |= (column == value.text).fill_null(False).to_numpy()
        if self.negated:
            return ~is_null & ~matches
        return matches | (is_null & wants_null)

    def _column(self, frame: pl.DataFrame) -> tuple[pl.Series, float]:
        name, divisor = self.key, 1.0
        if name not in frame.columns:
            aliases = [resolve(name, kind) for kind in COLUMNS]
            found = [a for a in aliases if a is not None and a.column in frame.columns]
            name, divisor = (found[0].column, found[0].divisor) if found else (name, 1.0)
        if name not in frame.columns:
            raise ServefitError(
                f"{self.text!r}: there is no column {self.key!r}{_near(self.key, frame)}"
            )
        column = frame[name]
        if not column.dtype.is_numeric() and column.dtype not in (pl.String, pl.Boolean):
            column = column.cast(pl.String)
        if self.modulus is not None:
            column = column % self.modulus
        return column, divisor

    def _match_number(self, column: pl.Series, divisor: float, value: _Value) -> BoolArray:
        numbers = column.cast(pl.Float64).to_numpy()
        if not value.is_range:
            wanted = self._number(value.text) / divisor
            return np.asarray(numbers == wanted)
        low_text, high_text = (part.strip() for part in value.text.split("..", 1))
        if not low_text and not high_text:
            raise ServefitError(f"{self.text!r}: the range has no end: write lo..hi, lo.. or ..hi")
        low = self._number(low_text) / divisor if low_text else -math.inf
        high = self._number(high_text) / divisor if high_text else math.inf
        if low > high:
            raise ServefitError(
                f"{self.text!r}: the range is empty: {low_text} is above {high_text}"
            )
        with np.errstate(invalid="ignore"):
            return np.asarray((numbers >= low) & (numbers <= high))

    def _number(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise ServefitError(f"{self.text!r}: {self.key} holds numbers, {text!r} is none")
        return number


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions that all have to hold; none at all selects every row."""

    conditions: tuple[Condition, ...] = ()

    def mask(self, frame: pl.DataFrame) -> BoolArray:
        """Which rows of ``frame`` are selected.

        Raises:
            ServefitError: a column does not exist, or a value does not fit its type.
        """
        mask = np.ones(frame.height, dtype=bool)
        for condition in self.conditions:
            mask &= condition.mask(frame)
        return mask

    def apply(self, table: RunTable, option: str = "--where") -> RunTable:
        """The selected rows of a table.

        Raises:
            ServefitError: as `mask`, or no row is selected; says how many each condition matches.
        """
        if not self.conditions:
            return table
        mask = self.mask(table.frame)
        if not mask.any():
            raise ServefitError(self.nothing_matches(table, option))
        return table.filter(mask)

    def nothing_matches(self, table: RunTable, option: str = "--where") -> str:
        """One line that says what each condition matches by itself."""
        counts = (f"{c.text!r} matches {int(c.mask(table.frame).sum())}" for c in self.conditions)
        together = "" if len(self.conditions) == 1 else " by itself, all together 0"
        return f"{option}: of {table.frame.height} rows, {', '.join(counts)}{together}"


def parse_selections(texts: Iterable[str]) -> Selection:
    """The selection that all of ``texts`` make together; see the module for the grammar.

    Raises:
        ServefitError: a text is not of the form ``key=values``.
    """
    return Selection(tuple(_parse(text) for text in texts))


def _parse(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ServefitError(f"{text!r} is no selection: write key=v1,v2 or key=lo..hi or key!=v")
    modulus = int(match["modulus"]) if match["modulus"] else None
    if modulus is not None and (match["key"] != ROW or modulus == 0):
        raise ServefitError(f"{text!r}: remainders are for the position only: write row%2=0")
    values = _values(match["values"], text)
    return Condition(text, match["key"], modulus, match["op"] == "!=", values)


def _values(text: str, whole: str) -> tuple[_Value, ...]:
    values: list[_Value] = []
    position = 0
    while position < len(text) or not values or text[position - 1] == ",":
        match = _VALUE.match(text, position)
        if match is None:
            raise ServefitError(f"{whole!r}: a double quote is left open or stands inside a value")
        quoted = match["quoted"]
        value = match["plain"].strip() if quoted is None else quoted.replace('""', '"')
        if not value and quoted is None:
            raise ServefitError(f"{whole!r}: a value is empty: unknown is written key=null")
        values.append(_Value(value, quoted is not None))
        position = match.end()
        if position == len(text) and not text.endswith(","):
            break
    return tuple(values)


def _near(key: str, frame: pl.DataFrame) -> str:
    columns: Sequence[str] = [c for c in frame.columns if c != FILE]
    near = difflib.get_close_matches(key, columns, n=3)
    if near:
        return f": did you mean {' or '.join(near)}?"
    return f": there are {' '.join(', '.join(columns).split())}"
