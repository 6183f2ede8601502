"""What several commands share: options, JSON output, tables on the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.errors import ServefitError
from servefit.plain import to_plain

if TYPE_CHECKING:
    from rich.console import Console

    from servefit.runs.table import RunTable

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

WHERE_HELP = (
    "Use only these rows: key=v1,v2 or key=lo..hi (either end open) or key!=v or key=null or "
    "row%2=0. Repeat it to narrow further."
)


def selection_option(option: str, help: str) -> Decorator:
    """A repeatable row selection under any name, such as ``--train``."""
    return click.option(option, multiple=True, metavar="KEY=VALUES", help=help)


#: ``--where``, repeatable.
where_option = selection_option("--where", WHERE_HELP)

#: ``--json``, passed on as ``as_json``.
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for machines."
)

_OBSERVATION_OPTIONS: tuple[Decorator, ...] = (
    click.option(
        "--batch-from",
        type=click.Choice(["mean_batch", "max_num_seqs"]),
        default="mean_batch",
        show_default=True,
        help="The batch that a law is given: the measured mean (or the static batch), or the cap.",
    ),
    click.option(
        "--context-from",
        type=click.Choice(["lengths", "mean_live_tokens"]),
        default="lengths",
        show_default=True,
        help="The context that a law is given: derived from the mean lengths, or measured.",
    ),
    click.option(
        "--workload",
        metavar="TRACE|MOMENTS",
        help="How the lengths behind the rows' means are mixed: a CSV trace with the columns "
        "input_tokens and output_tokens, or il=..,ol=..,cv_il=..,cv_ol=..,corr=.. Each row keeps "
        "its own means; its context is what these give times the workload's ratio.",
    ),
    click.option(
        "--gpu",
        metavar="NAME",
        help="What the rows ran on, in place of what they name; `unknown` fits its rates.",
    ),
)


def observation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--batch-from``, ``--context-from``, ``--workload``, ``--gpu``: what a law is given.

    A workload reaches the command as its ``context_from``.
    """

    @wraps(function)
    def with_context(*arguments: Any, workload: str | None, **options: Any) -> Any:
        if workload is not None:
            from servefit.workload import parse_workload

            if options["context_from"] != "lengths":
                raise ServefitError("give either --workload or --context-from, not both")
            options["context_from"] = parse_workload(workload)
        return function(*arguments, **options)

    command: Callable[..., Any] = with_context
    for option in reversed(_OBSERVATION_OPTIONS):
        command = option(command)
    return command


def load_rows(
    files: Sequence[str], where: Sequence[str] = (), *, gpu: str | None = None
) -> RunTable:
    """Read, select and check tables of runs; refused and flagged rows are counted on stderr.

    So are rows that name another accelerator than ``gpu``, which stands in for it.

    Raises:
        ServefitError: as `read_tables`; nothing is selected; every row is refused.
    """
    from servefit.runs.check import check
    from servefit.runs.select import parse_selections
    from servefit.runs.table import read_tables

    selection = parse_selections(where)
    table = check(selection.apply(read_tables(files)))
    refused = table.refused
    if refused:
        rows = len(table.refused_rows)
        first = refused[0]
        reason = f"{first.column} = {first.value}: {first.reason}" if first.column else first.reason
        line = (
            f"{rows} row{'s' * (rows > 1)} refused, first row {first.row} of {first.file}: {reason}"
        )
        if table.frame.is_empty():
            raise ServefitError(f"every row is refused: {line}")
        click.echo(f"servefit: {line} (all: `servefit check`)", err=True)
    flagged = len(table.flagged_rows)
    if flagged:
        rows_flagged = f"{flagged} row{'s' * (flagged > 1)} flagged and kept"
        click.echo(f"servefit: {rows_flagged} (why: `servefit check`)", err=True)
    if gpu is not None and "gpu" in table.frame.columns:
        from servefit import api

        own = getattr(api.as_hardware(gpu), "name", gpu)
        others = [name for name in table.frame["gpu"].drop_nulls() if name != own]
        if others:
            click.echo(
                f"servefit: --gpu {gpu} stands in for {', '.join(sorted(set(others)))}, which "
                f"{len(others)} of {table.frame.height} rows name",
                err=True,
            )
    return table


def mask(table: RunTable, selections: Sequence[str], option: str) -> Any:
    """Which rows the selections match; raises `ServefitError` if none is."""
    from servefit.runs.select import parse_selections

    selection = parse_selections(selections)
    chosen = selection.mask(table.frame)
    if not chosen.any():
        raise ServefitError(selection.nothing_matches(table, option))
    return chosen


def echo_json(value: object) -> None:
    """Print ``value`` as JSON; numpy and dataclasses are unpacked, NaN and infinity are null."""
    click.echo(json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def console(*, stderr: bool = False) -> Console:
    """A console for tables: never reads markup in what is printed, never cuts piped output."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def print_table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    left: Sequence[str] = (),
    to: Console | None = None,
) -> None:
    """Print a table; columns are right-aligned except those named in ``left``. No markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, box=box.SIMPLE_HEAD, title_justify="left")
    for header in headers:
        justify: Any = "left" if header in left else "right"
        table.add_column(Text(header), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    (to or console()).print(table)


def read_text(path: str) -> str:
    """A text file, or stdin for ``-``.

    Raises:
        ServefitError: it cannot be read, or is no UTF-8.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ServefitError(f"{path}: is no UTF-8 text") from None


def write_text(path: str, text: str) -> None:
    """Write a text file, or stdout for ``-``; raises `ServefitError` if it cannot be written."""
    if path == "-":
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None
