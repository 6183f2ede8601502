"""Rows that contradict themselves, each with file, row, column, value and reason.

A row is *refused*, and left out, when two of its numbers cannot both be right, or when it could
not have been measured; it is *flagged*, and kept, when it is only odd. Tolerances and the reasons
for them stand with the rules: ranges in `servefit.runs.schema`, relations between columns in
`servefit.runs.identities`, the hardware's limits in `servefit.runs.ceiling`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.runs.limits import limits
from servefit.runs.problem import Finding, Problem
from servefit.runs.relations import run_relations, step_relations
from servefit.runs.schema import COLUMNS, FILE, REQUIRED, ROW, Column
from servefit.runs.table import RunTable


def check(table: RunTable) -> RunTable:
    """The table without the rows that contradict themselves; ``problems`` says what was found.

    First each value by itself, then values against each other, then against what any accelerator
    can do; a row refused at one stage is not looked at in the next.
    """
    relations = run_relations if table.kind == "runs" else step_relations
    for rules in (_values, relations, limits, _duplicates):
        table = _apply(table, rules(table))
    return table


def _apply(table: RunTable, findings: Iterable[Finding | Problem]) -> RunTable:
    """Turn findings into problems, one a row and column, and leave refused rows out."""
    problems: dict[tuple[str, int, str], Problem] = {}
    notes: list[Problem] = []
    refused = np.zeros(table.frame.height, dtype=bool)
    files, positions = table.frame[FILE].to_list(), table.frame[ROW].to_list()
    for finding in findings:
        if isinstance(finding, Problem):
            notes.append(finding)
            continue
        for i in map(int, np.flatnonzero(finding.mask)):
            problems.setdefault(
                (files[i], positions[i], finding.column),
                Problem(
                    file=files[i],
                    row=positions[i],
                    column=finding.column,
                    value=_value(table.frame, finding.column, i),
                    reason=finding.reason(i),
                    severity=finding.severity,
                ),
            )
        if finding.severity == "refused":
            refused |= finding.mask
    order = {path: i for i, path in enumerate(table.paths)}
    merged = sorted(
        dict.fromkeys((*table.problems, *notes, *problems.values())),  # checked twice, said once
        key=lambda p: (order.get(p.file, 0), -1 if p.row is None else p.row),
    )
    return replace(table.filter(~refused), problems=tuple(merged))


def _value(frame: pl.DataFrame, column: str, i: int) -> str:
    value = frame[column][i] if column in frame.columns else None
    return "" if value is None else f"{value:.7g}" if isinstance(value, float) else str(value)


def _values(table: RunTable) -> Iterator[Finding]:
    """Each value by itself: known where needed, in its range, a known number format."""
    for names in REQUIRED[table.kind]:
        yield _missing(table, names)
    for column in COLUMNS[table.kind].values():
        if column.name in table.frame.columns and column.type in ("float", "int"):
            yield from _range(table, column)
    for name in ("dtype", "kv_cache_dtype"):
        known = [_is_dtype(text) for text in table.texts(name)]
        yield Finding(
            ~np.array(known, dtype=bool),
            name,
            lambda i: "unknown number format: leave it empty to take the model's own",
        )


def _range(table: RunTable, column: Column) -> Iterator[Finding]:
    values = table.numbers(column.name)
    filled = table.frame[column.name].is_not_null().to_numpy()
    yield Finding(
        filled & ~np.isfinite(values), column.name, lambda i: "is not finite: leave it empty"
    )
    if column.name in ("tpot_mean_s", "itl_mean_s"):
        # Tools write 0 where an answer of one token has neither.
        single = (values == 0) & (table.numbers("output_tokens") <= 1)
        yield Finding(
            single,
            column.name,
            lambda i: "does not exist for one output token: leave it empty",
            "flagged",
        )
        values = np.where(single, np.nan, values)
    if column.above is not None:
        hint = ": leave it empty if unknown" if column.above == 0 else ""
        yield Finding(
            values <= column.above, column.name, lambda i: f"must be above {column.above:g}{hint}"
        )
    if column.at_least is not None:
        yield Finding(
            values < column.at_least, column.name, lambda i: f"must be at least {column.at_least:g}"
        )
    if column.at_most is not None:
        yield Finding(
            values > column.at_most,
            column.name,
            lambda i: (
                f"must be at most {column.at_most:g}"
                + (": a percentage?" if 1 < values[i] <= 100 else "")
            ),
        )


def _is_dtype(text: str | None) -> bool:
    if text is None or text.lower() == "auto":
        return True
    try:
        canonical_dtype(text)
    except ServefitError:
        return False
    return True


def _missing(table: RunTable, names: tuple[str, ...]) -> Finding:
    present = [
        table.frame[name].is_null().to_numpy() for name in names if name in table.frame.columns
    ]
    return Finding(
        np.logical_and.reduce(present),
        names[0],
        lambda i: f"is empty: a row needs {' or '.join(names)}",
    )


def _duplicates(table: RunTable) -> Iterator[Finding]:
    """Rows that repeat an earlier one to the last digit; a true repeat differs somewhere."""
    ignored = {ROW, FILE, "source_file", "source_row", "repeat"}
    content = table.frame.select(pl.struct(pl.exclude(ignored)).alias("row")).to_series()
    again = ~content.is_first_distinct().to_numpy()
    yield Finding(again, "", lambda i: "repeats an earlier row to the last digit", "flagged")
