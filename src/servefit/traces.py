"""Traces of requests: when each came, and how long it was, from a CSV file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from servefit.errors import ServefitError

#: Column -> its names. The second ones are those of the published traces of Azure's LLM services.
COLUMNS: Mapping[str, Sequence[str]] = {
    "arrival_s": ("arrival_s", "TIMESTAMP"),
    "input_tokens": ("input_tokens", "ContextTokens"),
    "output_tokens": ("output_tokens", "GeneratedTokens"),
}
LENGTHS = ("input_tokens", "output_tokens")


@dataclass(frozen=True)
class Request:
    """One request of a trace.

    Attributes:
        line: where it stands in the file.
        arrival_s: when it came, from any origin; ``None`` where that was not asked for.
        input_tokens, output_tokens: its lengths.
    """

    line: int
    arrival_s: float | None
    input_tokens: float
    output_tokens: float


def parse_trace(text: str, name: str, *, arrivals: bool = False, how: str = "") -> list[Request]:
    """Requests of a trace in the order of the file; columns that are not asked for are ignored.

    Args:
        text: CSV with `COLUMNS`; an arrival is a number of seconds, or a date and time in ISO 8601
            (of UTC unless it says otherwise).
        name: the trace's name in messages.
        arrivals: whether ``arrival_s`` is needed.
        how: what to do where a column is missing.

    Raises:
        ServefitError: a column is missing; a value is no number, negative or infinite.
    """
    reader = csv.reader(io.StringIO(text))
    requests = []
    try:
        header = [cell.strip() for cell in next(reader, [])]
        wanted = COLUMNS if arrivals else LENGTHS
        places = {column: _place(column, header) for column in wanted}
        missing = [column for column, place in places.items() if place is None]
        if missing:
            raise ServefitError(
                f"{name}: lacks the column {', '.join(missing)}" + (f": {how}" if how else "")
            )
        for cells in reader:
            if any(cells):
                values = _values(cells, places)
                requests.append(
                    Request(
                        reader.line_num,
                        values.get("arrival_s"),
                        values["input_tokens"],
                        values["output_tokens"],
                    )
                )
    except (ValueError, IndexError, csv.Error) as error:
        raise ServefitError(f"{name}: line {reader.line_num}: {error}") from None
    return requests


def _place(column: str, header: Sequence[str]) -> int | None:
    return next((header.index(name) for name in COLUMNS[column] if name in header), None)


def _values(cells: Sequence[str], places: Mapping[str, int | None]) -> dict[str, float]:
    """The cells of the columns asked for; raises `ValueError` for one that is no value."""
    values = {}
    for column, place in places.items():
        cell = cells[place] if place is not None and place < len(cells) else ""
        try:
            value = float(cell)
        except ValueError:
            if column != "arrival_s":
                raise ValueError(f"{column} = {cell!r} is no number: {cells}") from None
            value = _timestamp_s(cell)
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{column} = {cell}: negative or infinite: {cells}")
        values[column] = value
    return values


def _timestamp_s(text: str) -> float:
    """Seconds since 1970 of a date and time."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"arrival {text!r} is neither seconds nor a date and time") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
