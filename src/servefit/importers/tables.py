"""Tables in text: CSV blocks parted by blank lines, Markdown tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator

from servefit.importers.document import Document

Row = dict[str, str]


def csv_blocks(text: str, delimiter: str = ",") -> Iterator[list[list[str]]]:
    """Tables of a text, each a header and its rows; blank lines part them."""
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip(", \t\ufeff"):
            block.append(line)
        elif block:
            yield _parse(block, delimiter)
            block = []


def csv_header(document: Document) -> list[str]:
    """The cells of the first line; empty where there is no comma."""
    lines = document.head.lstrip("\ufeff\r\n ").splitlines()
    rows = _parse([lines[0][:50_000]], ",") if lines and "," in lines[0] else []
    return rows[0] if rows else []


def _parse(lines: list[str], delimiter: str) -> list[list[str]]:
    rows = []
    for line in lines:
        try:
            rows += list(csv.reader([line], delimiter=delimiter))
        except csv.Error:  # a NUL, or a field over the csv module's limit
            continue
    return rows


def records(rows: list[list[str]]) -> list[Row]:
    """Rows by header; cells beyond the header are left out."""
    if not rows:
        return []
    header = [cell.strip() for cell in rows[0]]
    return [dict(zip(header, row, strict=False)) for row in rows[1:]]


def markdown_tables(lines: Iterable[str]) -> Iterator[tuple[int, list[Row]]]:
    """Markdown tables with the line number of their headers, rows as `Row`."""
    header: list[str] = []
    at, rows = 0, list[Row]()
    for number, line in enumerate(lines, start=1):
        cells = _cells(line)
        if cells is None:
            if header and rows:
                yield at, rows
            header, rows = [], []
        elif not header:
            header, at = cells, number
        elif not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append(dict(zip(header, cells, strict=False)))
    if header and rows:
        yield at, rows


def _cells(line: str) -> list[str] | None:
    text = line.strip()
    if len(text) < 3 or text[0] != "|" or text[-1] != "|":
        return None
    return [cell.strip() for cell in text[1:-1].split("|")]
