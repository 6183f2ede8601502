"""``servefit check``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.runs.problem import Problem
    from servefit.runs.table import RunTable


@click.command(name="check")
@click.argument("files", metavar="FILE...", nargs=-1)
@common.where_option
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the good rows here (.csv, .jsonl or .parquet); - for stdout, as CSV.",
)
@click.option("--columns", is_flag=True, help="List the documented columns and their other names.")
@common.json_option
def command(
    files: tuple[str, ...],
    where: tuple[str, ...],
    output: str | None,
    columns: bool,
    as_json: bool,
) -> None:
    """Validate tables of runs or of engine steps, row by row.

    FILEs are CSV, JSON Lines or Parquet, gzipped or not; - is standard input. Each row is held
    against the types and ranges of its columns, against itself (tokens and time against
    throughput, Little's law, TPOT against E2E, seconds against milliseconds, the KV cache's
    capacity) and against what the hardware can do at all. A row that contradicts itself is
    refused, an odd one is flagged; every other command leaves the refused rows out.

    \b
    servefit check runs.csv
    servefit check a.csv b.parquet --where campaign=fixed_lengths -o clean.csv
    servefit check --json - < runs.jsonl
    servefit check --columns

    Exit status: 0 when no row is refused, 1 when some are, 2 when a file cannot be used at all.
    """
    if columns:
        _print_columns(as_json)
        return
    if not files:
        raise click.UsageError("Missing argument 'FILE...': name a table of runs, or - for stdin.")
    if as_json and output == "-":
        raise ServefitError("--json and -o - both want stdout: give -o a file name")
    from servefit.runs.check import check
    from servefit.runs.select import parse_selections
    from servefit.runs.table import read_tables, write_table

    table = check(parse_selections(where).apply(read_tables(files)))
    if output is not None:
        if table.frame.is_empty():
            raise ServefitError(f"every row is refused: nothing to write to {output}")
        write_table(table, output)
    counts = _counts(table)
    if as_json:
        common.echo_json(
            {
                "files": table.paths,
                "kind": table.kind,
                **counts,
                "problems": [problem.as_dict() for problem in table.problems],
            }
        )
    else:
        _print_problems(table.problems, counts, table.kind, to_stderr=output == "-")
    sys.exit(1 if counts["refused"] else 0)


def _counts(table: RunTable) -> dict[str, int]:
    """Rows read, good, refused and flagged; a refused row is not counted as flagged too."""
    good = table.frame.height
    return {
        "rows": good + len(table.refused_rows),
        "good": good,
        "refused": len(table.refused_rows),
        "flagged": len(table.flagged_rows),
    }


def _print_problems(
    problems: tuple[Problem, ...], counts: dict[str, int], kind: str, *, to_stderr: bool
) -> None:
    console = common.console(stderr=to_stderr)
    rows = [p for p in problems if p.row is not None]
    if rows:
        common.print_table(
            ("file", "row", "column", "value", "severity", "reason"),
            [(p.file, p.row, p.column, p.value, p.severity, p.reason) for p in rows],
            left=("file", "column", "value", "severity", "reason"),
            to=console,
        )
    for p in problems:
        if p.row is None:
            console.print(f"{p.file}: {p.column} {p.value}: {p.reason}", soft_wrap=True)
    console.print(
        f"{counts['rows']} rows of {kind}: {counts['good']} good"
        f" ({counts['flagged']} of them flagged), {counts['refused']} refused",
        soft_wrap=True,
    )


def _print_columns(as_json: bool) -> None:
    from servefit.runs.describe import columns

    if as_json:
        common.echo_json({kind: columns(kind) for kind in ("runs", "steps")})
        return
    for kind in ("runs", "steps"):
        common.print_table(
            ("column", "type", "unit", "meaning", "also read as"),
            [
                (c["name"], c["type"], c["unit"], c["meaning"], ", ".join(c["other_names"]))
                for c in columns(kind)
            ],
            title=f"Columns of a table of {kind}",
            left=("column", "type", "unit", "meaning", "also read as"),
        )
