"""Points as a table of runs, checked once more as every table is."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from servefit.importers.point import Point
from servefit.runs.cells import POLARS
from servefit.runs.check import check
from servefit.runs.schema import COLUMNS, FILE, ROW
from servefit.runs.table import RunTable

#: Verdicts that travel with a row.
_KEPT = ("flagged", "corrected")

#: Columns whose flags repeat a verdict.
_SAID_BEFORE = ("flags", "speculative_decoding", "disaggregated")


def to_table(points: Sequence[Point]) -> RunTable:
    """The rows of points; what `servefit check` says of them is added to their verdicts.

    ``row`` is the position of the point in ``points``. Rows that the check refuses are left out.
    """
    rows = [_row(i, point) for i, point in enumerate(points)]
    names = {name for row in rows for name in row}
    documented = [c for c in COLUMNS["runs"].values() if c.name in names]
    series = [
        pl.Series(c.name, [row.get(c.name) for row in rows], dtype=POLARS[c.type], strict=False)
        for c in documented
    ]
    extra = sorted(names - set(COLUMNS["runs"]) - {ROW, FILE})
    series += [pl.Series(name, [_text(row.get(name)) for row in rows]) for name in extra]
    series += [
        pl.Series(ROW, [row[ROW] for row in rows], dtype=pl.Int64),
        pl.Series(FILE, [row[FILE] for row in rows], dtype=pl.String),
    ]
    table = check(
        RunTable("runs", pl.DataFrame(series), tuple(dict.fromkeys(p.file for p in points)))
    )
    for problem in table.problems:
        if problem.row is not None and problem.column not in _SAID_BEFORE:
            value = f" = {problem.value}" if problem.value else ""
            message = f"{problem.column}{value} {problem.reason}".strip()
            points[problem.row].say("servefit check", problem.severity, message)
    return table


def _text(value: object) -> object:
    return value if value is None or isinstance(value, int | float) else str(value)


def _row(index: int, point: Point) -> dict[str, object]:
    row: dict[str, object] = {ROW: index, FILE: point.file}
    for column, reading in point.readings.items():
        if column.startswith("_"):
            continue
        known = COLUMNS["runs"].get(column)
        if known is None or _fits(known.type, reading.value):
            row[column] = _as(known.type if known else "", reading.value)
    row["source_file"] = f"{point.file} ({point.format})"
    row["flags"] = "; ".join(v.message for v in point.verdicts if v.outcome in _KEPT) or None
    return row


def _fits(kind: str, value: object) -> bool:
    if kind == "int":
        return isinstance(value, int | float) and value == int(value) and abs(value) < 2**62
    return True


def _as(kind: str, value: object) -> object:
    if kind == "int" and isinstance(value, int | float):
        return int(value)
    return float(value) if kind == "float" and isinstance(value, int | float) else value
