"""CSV tables below lines of chatter, as Nsight's tools print them."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence

from servefit.errors import ServefitError

#: The header is looked for in as many lines.
HEADER_LINES = 200


def header_row(text: str, is_header: Callable[[Sequence[str]], bool]) -> int | None:
    """Which line is the header; ``None`` if none of the first is."""
    for number, line in enumerate(text.splitlines()[:HEADER_LINES]):
        if '"' not in line and "," not in line:
            continue
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error:
            continue
        if is_header([cell.strip() for cell in cells]):
            return number
    return None


def read_table(text: str, start: int, where: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows from line ``start``; blank lines and lines ``==...==`` of ncu are left out.

    Raises:
        ServefitError: a row has another number of cells than the header.
    """
    lines = text.splitlines()[start:]
    try:
        rows = [
            row
            for row in csv.reader(line for line in lines if not line.startswith("=="))
            if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise ServefitError(f"{where}: is a broken CSV file: {error}") from None
    header = [cell.strip() for cell in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header) and not _is_short_by_empty(row, header):
            raise ServefitError(
                f"{where}: row {number} has {len(row)} cells, the header {len(header)}: is the "
                "file cut off?"
            )
    return header, [row + [""] * (len(header) - len(row)) for row in rows[1:]]


def _is_short_by_empty(row: list[str], header: list[str]) -> bool:
    """Whether only trailing cells are left away, as ncu does with those of rules."""
    optional = {"Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type"}
    optional.add("Estimated Speedup")
    return len(row) < len(header) and set(header[len(row) :]) <= optional


def number(text: str, what: str) -> float | None:
    """A number with or without thousands separators; ``None`` for n/a and nothing.

    Raises:
        ServefitError: it is no finite number, called ``what``.
    """
    plain = text.strip().replace(",", "")
    if plain.lower() in ("", "n/a", "nan", "(null)", "-nan"):
        return None
    try:
        value = float(plain)
    except ValueError:
        raise ServefitError(f"{what}: {text[:40]!r} is no number") from None
    if not math.isfinite(value):
        raise ServefitError(f"{what}: {text[:40]!r} is not finite")
    return value
