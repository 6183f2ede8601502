"""From the bytes of a file to raw records; the format is told from the content.

Reads CSV (comma, semicolon, tab or bar), JSON Lines, a JSON array of objects and Parquet, each
also gzipped. One bad line refuses that line, not the file.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass

from servefit.errors import ServefitError
from servefit.runs.problem import Problem
from servefit.runs.schema import COLUMNS, resolve

#: Larger inputs are not tables of runs; stops gzip bombs too.
MAX_BYTES = 2 * 1024**3

_DELIMITERS = ",;\t|"


class _BadLineError(Exception):
    """A line that does not parse, kept in the place of its record."""

    def __init__(self, reason: str, line: str) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True)
class Records:
    """Raw cells by header, and the position of each record in its file."""

    columns: dict[str, list[object]]
    rows: list[int]
    problems: list[Problem]


def read_records(data: bytes, name: str) -> Records:
    """Records of one file.

    Raises:
        ServefitError: the file as a whole cannot be read as a table.
    """
    if data[:2] == b"\x1f\x8b":
        data = _unzip(data, name)
    if data[:4] == b"PAR1":
        return _parquet(data, name)
    text = _decode(data, name)
    if not text.strip():
        raise ServefitError(f"{name}: is empty: a table of runs needs a header and one row")
    first = text.lstrip()[:1]
    records = _json(text, name) if first in ("{", "[") else _csv(text, name)
    if not records.rows:
        reason = f": {records.problems[0].reason}" if records.problems else ""
        raise ServefitError(f"{name}: holds no readable row{reason}")
    return records


def _unzip(data: bytes, name: str) -> bytes:
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ServefitError(f"{name}: is a damaged gzip file ({error})") from None
    if len(data) > MAX_BYTES:
        raise ServefitError(f"{name}: unpacks to more than {MAX_BYTES >> 30} GiB: split it")
    return data


def _decode(data: bytes, name: str) -> str:
    if data[:2] == b"PK":
        raise ServefitError(f"{name}: is a zip archive or spreadsheet: export the table as CSV")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ServefitError(
            f"{name}: byte {error.start} is no UTF-8 text: save it as CSV, JSON Lines or Parquet"
        ) from None
    if "\0" in text:
        raise ServefitError(f"{name}: holds binary data: save it as CSV, JSON Lines or Parquet")
    return text


def _parquet(data: bytes, name: str) -> Records:
    import polars as pl
    import polars.selectors as cs

    try:
        frame = pl.read_parquet(io.BytesIO(data)).with_columns(cs.decimal().cast(pl.Float64))
    except (Exception, pl.exceptions.PanicException) as error:  # a damaged file raises any kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ServefitError(f"{name}: is a damaged Parquet file ({reason})") from None
    if frame.is_empty():
        raise ServefitError(f"{name}: holds no rows")
    return Records(frame.to_dict(as_series=False), list(range(frame.height)), [])


def _json(text: str, name: str) -> Records:
    problems: list[Problem] = []
    objects: list[tuple[int, dict[str, object]]] = []
    for row, item in enumerate(_json_items(text)):
        if isinstance(item, dict):
            objects.append((row, item))
        else:
            reason = str(item) if isinstance(item, _BadLineError) else "is not a JSON object"
            value = item.line if isinstance(item, _BadLineError) else item
            problems.append(Problem(name, row, "", excerpt(value), reason, "refused"))
    headers = dict.fromkeys(key for _, item in objects for key in item)
    columns = {key: [item.get(key) for _, item in objects] for key in headers}
    return Records(columns, [row for row, _ in objects], problems)


def _json_items(text: str) -> list[object]:
    """One object, an array of them, or one a line; a line that does not parse is its error."""
    try:
        whole = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError):
        return [_json_line(line) for line in text.split("\n") if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _json_line(line: str) -> object:
    try:
        return json.loads(line, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        return _BadLineError(f"the line does not parse as JSON: {error}", line)


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    counts = Counter(key for key, _ in pairs)
    key, count = counts.most_common(1)[0] if counts else ("", 0)
    if count > 1:
        raise ValueError(f"key {key!r} occurs {count} times")
    return dict(pairs)


def _csv(text: str, name: str) -> Records:
    delimiter = _delimiter(text)
    lines = _csv_lines(text, delimiter)
    headers = _headers(lines[0], name)
    problems: list[Problem] = []
    rows: list[int] = []
    cells: list[list[str]] = []
    for row, line in enumerate(lines[1:]):
        if isinstance(line, str):
            reason = "the line does not parse: a quote is left open or stands inside a cell"
            problems.append(Problem(name, row, "", excerpt(line), reason, "refused"))
            continue
        filled = max((i + 1 for i, cell in enumerate(line) if cell.strip()), default=0)
        if filled > len(headers) or (filled > 0 and len(line) < len(headers)):
            reason = f"has {len(line)} fields where the header has {len(headers)}"
            value = excerpt(delimiter.join(line))
            problems.append(Problem(name, row, "", value, reason, "refused"))
        elif filled:
            rows.append(row)
            cells.append(line)
    columns: dict[str, list[object]] = {}
    for i, header in enumerate(headers):
        column: list[object] = [line[i] for line in cells]
        if header or any(str(cell).strip() for cell in column):
            columns[header or f"column_{i}"] = column
    return Records(columns, rows, problems)


def _delimiter(text: str) -> str:
    """The delimiter that makes most known column names of the first line."""
    header = text.lstrip().splitlines()[0]

    def score(delimiter: str) -> tuple[int, int]:
        fields = [field.strip(' "') for field in header.split(delimiter)]
        known = sum(any(resolve(field, kind) for kind in COLUMNS) for field in fields)
        return known, len(fields)

    return max(_DELIMITERS, key=score)


def _csv_lines(text: str, delimiter: str) -> list[list[str] | str]:
    """The fields of each line that is not blank; a line that does not parse stays a string.

    A stray quote can swallow the lines after it into one cell. Where that seems to have happened,
    each line is read by itself, so that the quote costs no other line.
    """
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        lines = [fields for fields in reader if len(fields) > 1 or "".join(fields).strip()]
    except csv.Error:
        pass
    else:
        width = len(lines[0])
        if all(len(fields) == width or "\n" not in "".join(fields) for fields in lines):
            return list(lines)
    return [_fields(line, delimiter) for line in re.split(r"\r\n|\n|\r", text) if line.strip()]


def _fields(line: str, delimiter: str) -> list[str] | str:
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except csv.Error:
        return line


def _headers(line: list[str] | str, name: str) -> list[str]:
    if isinstance(line, str):
        raise ServefitError(f"{name}: its header does not parse: a quote is left open")
    headers = [header.strip() for header in line]
    twice = [header for header, n in Counter(headers).items() if n > 1 and header]
    if twice:
        raise ServefitError(f"{name}: column {twice[0]!r} occurs twice: rename one of the two")
    return headers


def excerpt(value: object) -> str:
    """A value as text for a message, cut to 60 characters."""
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
