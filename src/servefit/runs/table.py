"""Tables of runs and of engine steps: read, combine, write."""

from __future__ import annotations

import difflib
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from servefit.errors import ServefitError
from servefit.runs.cells import POLARS, BadCellError, Value, parse_cell, parse_extra
from servefit.runs.problem import Problem
from servefit.runs.records import Records, excerpt, read_records
from servefit.runs.schema import (
    COLUMNS,
    FILE,
    REQUIRED,
    ROW,
    SCHEMA_VERSION,
    Alias,
    Column,
    Kind,
    resolve,
)

Format = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, Format] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


@dataclass(frozen=True)
class RunTable:
    """Rows of one schema, with what was wrong with them.

    Attributes:
        kind: ``runs`` (a row per run) or ``steps`` (a row per engine step shape).
        frame: documented columns under their canonical names, then any others; unknown is null.
            ``row`` (Int64) is the position in the row's own file, ``file`` its name. Refused rows
            are not in it.
        paths: the files, ``-`` for stdin.
        problems: refused and flagged rows so far.
    """

    kind: Kind
    frame: pl.DataFrame
    paths: tuple[str, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def refused(self) -> tuple[Problem, ...]:
        """Problems whose rows were left out."""
        return tuple(p for p in self.problems if p.severity == "refused")

    @property
    def refused_rows(self) -> frozenset[tuple[str, int | None]]:
        """File and position of each refused row."""
        return frozenset((p.file, p.row) for p in self.refused)

    @property
    def flagged_rows(self) -> frozenset[tuple[str, int | None]]:
        """File and position of each row that is flagged, and kept."""
        return frozenset((p.file, p.row) for p in self.problems if p.row is not None) - (
            self.refused_rows
        )

    def numbers(self, column: str) -> npt.NDArray[np.float64]:
        """A column as floats, NaN where unknown; all NaN if the table lacks it."""
        if column not in self.frame.columns:
            return np.full(self.frame.height, np.nan)
        return self.frame[column].cast(pl.Float64).to_numpy()

    def texts(self, column: str) -> list[str | None]:
        """A text column; all ``None`` if the table lacks it."""
        if column not in self.frame.columns:
            return [None] * self.frame.height
        return cast("list[str | None]", self.frame[column].cast(pl.String).to_list())

    def filter(self, mask: npt.NDArray[np.bool_]) -> RunTable:
        """The rows where ``mask`` is true."""
        return replace(self, frame=self.frame.filter(pl.Series(mask)))


def read_table(path: str | Path) -> RunTable:
    """Read a table of runs or steps; ``-`` is stdin. The format is told from the content.

    A row with a cell that does not parse is left out and named in ``problems``. Whether rows agree
    with themselves is the business of `servefit.runs.check.check`.

    Raises:
        ServefitError: the file cannot be read, is no table, lacks a required column, or is of a
            newer schema.
    """
    name = str(path)
    records = read_records(_read_bytes(name), name)
    _refuse_newer(records, name)
    is_steps = any(
        (a := resolve(h, "steps")) and a.column == "step_time_s" for h in records.columns
    )
    kind: Kind = "steps" if is_steps else "runs"
    names = _column_names(list(records.columns), kind)
    _require(names, list(records.columns), kind, name)
    return _parse(records, names, kind, name)


def read_tables(paths: Sequence[str | Path]) -> RunTable:
    """Read several files of one kind as one table; ``row`` stays the position in each file.

    Raises:
        ServefitError: as `read_table`; a file is named twice; runs and steps are mixed.
    """
    names = [str(path) for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise ServefitError(f"{name}: is given twice: its rows would count double")
    tables = [read_table(name) for name in names]
    first = tables[0]
    for table in tables[1:]:
        if table.kind != first.kind:
            raise ServefitError(
                f"{table.paths[0]} is a table of {table.kind}, {first.paths[0]} of {first.kind}: "
                "read them one at a time"
            )
    return RunTable(
        kind=first.kind,
        frame=_concat([table.frame for table in tables]),
        paths=tuple(names),
        problems=tuple(problem for table in tables for problem in table.problems),
    )


def table_from_rows(
    rows: Sequence[Mapping[str, object]], source: str, kind: Kind = "runs"
) -> RunTable:
    """A table from rows in memory, parsed as those of a file; ``None`` is unknown.

    Args:
        rows: cells by column name.
        source: stands for the file's name in messages.
        kind: which schema the rows follow.

    Raises:
        ServefitError: no rows, or a required column is missing.
    """
    if not rows:
        raise ServefitError(f"{source}: there are no rows")
    headers = dict.fromkeys(header for row in rows for header in row)
    columns = {header: [row.get(header) for row in rows] for header in headers}
    names = _column_names(list(headers), kind)
    _require(names, list(headers), kind, source)
    return _parse(Records(columns, list(range(len(rows))), []), names, kind, source)


def write_table(
    table: RunTable | pl.DataFrame, path: str | Path, format: Format | None = None
) -> None:
    """Write a table that `read_table` reads back; ``-`` is stdout.

    The format follows the suffix (.csv, .jsonl or .ndjson, .parquet), or ``format``; stdout
    defaults to CSV. Unknown is an empty cell or null. ``row`` and ``file``, which say where rows
    were read, are not written.

    Raises:
        ServefitError: the suffix names no format, or the file cannot be written.
    """
    frame = table.frame if isinstance(table, RunTable) else table
    frame = frame.drop(ROW, FILE, "schema_version", strict=False)
    frame = frame.select(pl.lit(SCHEMA_VERSION, pl.Int64).alias("schema_version"), pl.all())
    name = str(path)
    if format is None:
        format = "csv" if name == "-" else SUFFIXES.get(Path(name).suffix.lower())
    if format is None:
        raise ServefitError(f"{name}: no table format has this suffix: use {', '.join(SUFFIXES)}")
    data = {"csv": _to_csv, "jsonl": _to_jsonl, "parquet": _to_parquet}[format](frame)
    if name == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        raise ServefitError(f"{name}: cannot be written ({error.strerror})") from None


def _read_bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ServefitError(f"{name}: cannot be read ({error.strerror})") from None


def _refuse_newer(records: Records, name: str) -> None:
    for value in records.columns.pop("schema_version", []):
        try:
            version = parse_cell(value, Column("schema_version", "int", "", ""), Alias(""))
        except BadCellError as error:
            raise ServefitError(
                f"{name}: schema_version = {excerpt(value)!r} {error}: this servefit knows version "
                f"{SCHEMA_VERSION}"
            ) from None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ServefitError(
                f"{name}: is of schema version {version}, this servefit knows up to "
                f"{SCHEMA_VERSION}: upgrade servefit"
            )


def _column_names(headers: Sequence[str], kind: Kind) -> dict[str, Alias]:
    """Documented column of each header. A canonical name comes before any alias of it, and the
    first of several aliases before the others, which stay extra columns."""
    taken: dict[str, str] = {}
    for header in sorted(headers, key=lambda h: h not in COLUMNS[kind]):
        alias = resolve(header, kind)
        if alias is not None:
            taken.setdefault(alias.column, header)
    resolved = {header: resolve(header, kind) for header in headers}
    return {h: a for h, a in resolved.items() if a is not None and taken[a.column] == h}


def _require(names: dict[str, Alias], headers: Sequence[str], kind: Kind, name: str) -> None:
    present = {alias.column for alias in names.values()}
    missing = [" or ".join(any_of) for any_of in REQUIRED[kind] if present.isdisjoint(any_of)]
    if not present:
        raise ServefitError(
            f"{name}: has no known column: a table of runs needs {', '.join(missing)}"
        )
    if missing:
        wanted = [column for any_of in REQUIRED[kind] for column in any_of]
        extras = [header for header in headers if header not in names]
        near = [h for h in extras if difflib.get_close_matches(h.lower(), wanted, 1, cutoff=0.8)]
        hint = f" (is it {near[0]!r}?)" if near else ""
        raise ServefitError(
            f"{name}: lacks the column {', '.join(missing)}{hint}: `servefit check --columns` "
            "lists names"
        )


def _parse(records: Records, names: dict[str, Alias], kind: Kind, name: str) -> RunTable:
    problems = list(records.problems)
    known: dict[str, list[Value]] = {}
    extras: dict[str, list[object]] = {}
    refused: set[int] = set()
    for header, cells in records.columns.items():
        alias = names.get(header)
        if alias is None:
            extras[header] = cells
            continue
        column = COLUMNS[kind][alias.column]
        values: list[Value] = []
        for i, cell in enumerate(cells):
            try:
                values.append(parse_cell(cell, column, alias))
            except BadCellError as error:
                values.append(None)
                refused.add(i)
                problems.append(
                    Problem(name, records.rows[i], header, excerpt(cell), str(error), "refused")
                )
        known[column.name] = values
    order = [column for column in COLUMNS[kind] if column in known]
    series = [pl.Series(c, known[c], dtype=POLARS[COLUMNS[kind][c].type]) for c in order]
    for header, cells in extras.items():
        while header in known or header in (ROW, FILE):
            header += "_"
        series.append(parse_extra(cells).alias(header))
    series += [pl.Series(ROW, records.rows, dtype=pl.Int64)]
    frame = pl.DataFrame(series).with_columns(pl.lit(name).alias(FILE))
    keep = [i not in refused for i in range(frame.height)]
    problems.sort(key=lambda problem: -1 if problem.row is None else problem.row)
    return RunTable(kind, frame.filter(pl.Series(keep, dtype=pl.Boolean)), (name,), tuple(problems))


def _concat(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """The rows of all frames; an extra column of different types becomes text."""
    types: dict[str, set[pl.DataType]] = {}
    for frame in frames:
        for column, dtype in frame.schema.items():
            types.setdefault(column, set()).add(dtype)
    mixed = {c for c, t in types.items() if len(t) > 1 and not all(d.is_numeric() for d in t)}
    return pl.concat(
        [
            f.with_columns(pl.col(c).cast(pl.String) for c in mixed if c in f.columns)
            for f in frames
        ],
        how="diagonal_relaxed",
    )


def _to_csv(frame: pl.DataFrame) -> bytes:
    return frame.write_csv().encode()


def _to_jsonl(frame: pl.DataFrame) -> bytes:
    lines = (
        json.dumps({k: _json_value(v) for k, v in row.items()}, ensure_ascii=False, allow_nan=False)
        for row in frame.iter_rows(named=True)
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _json_value(value: object) -> object:
    """JSON has no infinity; an extra column may hold one (a request rate), written as text."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _to_parquet(frame: pl.DataFrame) -> bytes:
    stream = io.BytesIO()
    frame.write_parquet(stream)
    return stream.getvalue()
