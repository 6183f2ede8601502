"""CSV tables below lines of chatter, as Nsight's tools print them."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence

from servefit.errors import ServefitError

#: The header is looked for in as many lines.
HEADER_LINES = 200
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?([eE][+-]?\d+)?", re.ASCII)


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


def read_table(
    text: str, is_header: Callable[[Sequence[str]], bool], where: str
) -> tuple[list[str], list[list[str]]]:
    """Header and rows, without what is above, blank lines, and ncu's own lines ``==...==``.

    Raises:
        ServefitError: no line is a header; a row has another number of cells than it; the text ends
            within quotes.
    """
    lines = text.splitlines()[header_row(text, is_header) or 0 :]
    try:
        rows = [
            row
            for row in csv.reader((x for x in lines if not x.startswith("==")), strict=True)
            if any(cell.strip() for cell in row)
        ]
    except csv.Error as error:
        raise ServefitError(f"{where}: is a broken CSV file (cut off?): {error}") from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    if not is_header(header):
        raise ServefitError(f"{where}: its header is broken")
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
        ServefitError: it is no finite number, called ``what``; commas that are no thousands
            separators, as other languages write decimals.
    """
    plain = text.strip()
    if "," in plain:
        if not _THOUSANDS.fullmatch(plain):
            raise ServefitError(
                f"{what}: {text[:40]!r}: commas must separate thousands: export with LC_ALL=C"
            )
        plain = plain.replace(",", "")
    if plain.lower() in ("", "n/a", "nan", "(null)", "-nan"):
        return None
    try:
        value = float(plain)
    except ValueError:
        raise ServefitError(f"{what}: {text[:40]!r} is no number") from None
    if not math.isfinite(value):
        raise ServefitError(f"{what}: {text[:40]!r} is not finite")
    return value
