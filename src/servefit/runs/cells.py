"""One cell of a file: from what is written there to a value of its column's type."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import polars as pl

from servefit.runs.schema import Alias, Column, Type

Value = str | float | int | bool | None

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_PLAIN_INT = re.compile(r"-?(0|[1-9]\d{0,17})")
_PLAIN_FLOAT = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_WITH_UNIT = re.compile(r"[+-]?[\d.]+([eE][+-]?\d+)?\s*[A-Za-zµ/]+")
_BOOLS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}

#: Type in a schema -> type in a frame.
POLARS: dict[Type, pl.DataType] = {
    "text": pl.String(),
    "float": pl.Float64(),
    "int": pl.Int64(),
    "bool": pl.Boolean(),
}


class BadCellError(ValueError):
    """A cell that does not parse; the message is the reason."""


def is_empty(raw: object) -> bool:
    """Whether a cell says 'unknown': null, or nothing but blanks."""
    return raw is None or (isinstance(raw, str) and not raw.strip())


def parse_cell(raw: object, column: Column, alias: Alias) -> Value:
    """The value of a documented column, in its unit; ``None`` is unknown.

    Raises:
        BadCellError: the cell does not hold a value of the column's type.
    """
    if is_empty(raw):
        return None
    if column.type == "text":
        return _text(raw)
    if column.type == "bool":
        if isinstance(raw, bool):
            return raw
        value = _BOOLS.get(str(raw).strip().lower())
        if value is None:
            raise BadCellError("must be true or false")
        return value
    number = _number(raw)
    if column.type == "float":
        return float(number) / alias.divisor
    if number != math.floor(number):
        hint = ": a time average belongs in mean_batch" if column.name == "batch" else ""
        raise BadCellError(f"must be a whole number{hint}")
    if abs(number) >= 2**63:
        raise BadCellError("is too large to be a count")
    return int(number)


def parse_extra(raw: Sequence[object]) -> pl.Series:
    """A column outside the schema, kept as it is.

    Text that is a number in every filled row becomes a number, so that rows can be selected by
    range; NaN becomes null; anything nested becomes its JSON text.
    """
    values = [None if is_empty(v) else v for v in raw]
    filled = [v for v in values if v is not None]
    if not filled:
        return pl.Series(values, dtype=pl.String)
    if all(isinstance(v, str) for v in filled):
        return _extra_from_text([None if v is None else str(v) for v in values])
    if all(isinstance(v, bool) for v in filled):
        return pl.Series(values, dtype=pl.Boolean)
    numbers = [_extra_number(v) for v in filled]
    if all(isinstance(v, int) and abs(v) < 2**63 for v in numbers):
        return pl.Series(values, dtype=pl.Int64)
    if None not in numbers:
        return _floats([None if v is None else _extra_number(v) for v in values])
    return pl.Series([None if v is None else _as_text(v) for v in values], dtype=pl.String)


def _extra_from_text(values: list[str | None]) -> pl.Series:
    filled = [v.strip() for v in values if v is not None]
    if all(_PLAIN_INT.fullmatch(v) for v in filled):
        return pl.Series([None if v is None else int(v) for v in values], dtype=pl.Int64)
    if all(_PLAIN_FLOAT.fullmatch(v) or _NOT_FINITE.fullmatch(v) for v in filled):
        return _floats([None if v is None else float(v) for v in values])
    if all(v.lower() in ("true", "false") for v in filled):
        bools = [None if v is None else v.strip().lower() == "true" for v in values]
        return pl.Series(bools, dtype=pl.Boolean)
    return pl.Series([None if v is None else _clean(v) for v in values], dtype=pl.String)


def _extra_number(value: object) -> float | None:
    if isinstance(value, str):
        return float(value) if _NOT_FINITE.fullmatch(value.strip()) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _floats(values: Sequence[float | None]) -> pl.Series:
    floats = [None if v is None or math.isnan(v) else float(v) for v in values]
    return pl.Series(floats, dtype=pl.Float64)


def _number(raw: object) -> float:
    """A finite number, an ``int`` where it is written as one."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise BadCellError("is not a number")
    if isinstance(raw, str):
        raw = _number_from_text(raw.strip())
    if not math.isfinite(raw):
        raise BadCellError("is not finite: leave unknown cells empty")
    return raw


def _number_from_text(text: str) -> float:
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() and len(text) <= 20 else float(text)
    if _NOT_FINITE.fullmatch(text):
        raise BadCellError("is not finite: leave unknown cells empty")
    if text.endswith("%"):
        raise BadCellError("is a percentage: write a fraction, 0.9 for 90%")
    if "," in text:
        raise BadCellError("holds a comma: write a decimal point and no thousands separators")
    if _WITH_UNIT.fullmatch(text):
        raise BadCellError("carries a unit: write a plain number in the column's unit")
    raise BadCellError("is not a number: leave unknown cells empty")


def _text(raw: object) -> str:
    if isinstance(raw, dict | list):
        raise BadCellError("is nested: write plain text")
    if isinstance(raw, float) and not math.isfinite(raw):
        raise BadCellError("is not finite: leave unknown cells empty")
    return _clean(_as_text(raw)).strip()


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _clean(text: str) -> str:
    """Text that every format can store: no NUL, no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
