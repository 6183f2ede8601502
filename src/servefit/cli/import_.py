"""``servefit import``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from rich.console import Console

    from servefit.importers import Import, Point


@click.command(name="import")
@click.argument("paths", metavar="FILE_OR_FOLDER...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write the rows here (.csv, .jsonl or .parquet); - for stdout, as CSV.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="What the files do not say, for every point: model=NAME, gpu=NAME, "
    "tensor_parallel_size=N, ... Repeat it. KEY=suggested confirms what file names suggest.",
)
@click.option("--explain", is_flag=True, help="Show how each number was read and which checks ran.")
@common.json_option
def command(
    paths: tuple[str, ...],
    output: str | None,
    settings: tuple[str, ...],
    explain: bool,
    as_json: bool,
) -> None:
    """Turn result files of benchmark tools into a table of runs.

    Files are recognised by content, never by name; folders are searched; - is standard input.
    Results of vLLM, SGLang, GuideLLM, AIPerf and GenAI-Perf, inference-perf, llmperf, llama-bench
    and others are read, /metrics pages and server logs too (docs/importing.md lists what each can
    tell). Every point is checked against itself; what contradicts itself is corrected with the
    reason, flagged, or refused. What a file does not say is asked for, never guessed; what only
    its name suggests is used once you confirm it.

    \b
    servefit import results/ -o runs.csv --set gpu=H100 --set tensor_parallel_size=1
    servefit import latency_bs4.json --set batch=suggested --set model=facebook/opt-1.3b
    servefit import --explain bench.json
    servefit import before.prom after.prom --set duration_s=60 -o runs.csv

    Exit status: 0 when every run became a row, 1 when some did not, 2 when none did.
    """
    if as_json and output == "-":
        raise ServefitError("--json and -o - both want stdout: give -o a file name")
    from servefit.importers import import_files, parse_settings, to_table
    from servefit.runs.table import write_table

    result = import_files(paths, parse_settings(settings))
    table = to_table(result.runs) if result.runs else None
    written = 0 if table is None else table.frame.height
    if output is not None and table is not None and written:
        write_table(table, output)
    if as_json:
        common.echo_json(_plain(result, written))
    else:
        _print(result, written, output, explain=explain)
    runs = sum(point.is_run for point in result.points)
    if runs and not written and not as_json:
        raise ServefitError(_nothing(result))
    if not result.points:
        sys.exit(2)
    lost = runs - written - result.repeats
    sys.exit(1 if lost or any(path in result.unread for path in paths) else 0)


def _nothing(result: Import) -> str:
    """Why no run became a row, in one line."""
    first = next(p for p in result.points if p.is_run)
    reason = next((v.message for v in first.verdicts if v.outcome == "refused"), "is refused")
    runs = sum(p.is_run for p in result.points)
    return f"{first.place}: {first.format}: {reason}" + (
        f" (none of {runs} points became a row)" if runs > 1 else ""
    )


def _plain(result: Import, written: int) -> dict[str, Any]:
    """Everything, for machines."""
    return {
        "points": [
            {
                "format": point.format,
                "file": point.file,
                "where": point.where,
                "kind": "run" if point.is_run else "server",
                "status": _status(point),
                "values": {c: r.value for c, r in point.readings.items() if not c.startswith("_")},
                "readings": {
                    column: {"source": r.source, "raw": r.raw, "how": r.how}
                    for column, r in point.readings.items()
                },
                "checks": [
                    {"check": v.check, "outcome": v.outcome, "message": v.message}
                    for v in point.verdicts
                ],
                "suggested": [
                    {"set": f"{s.column}={_value(s.value)}", "why": s.why}
                    for s in point.suggestions
                ],
                "notes": point.notes,
            }
            for point in result.points
        ],
        "rows": written,
        "missing": [{"set": key, "points": n} for key, n in result.missing.items()],
        "unread": [{"file": name, "reason": why} for name, why in result.unread.items()],
    }


def _status(point: Point) -> str:
    if point.refused:
        from servefit.importers.collect import MISSING

        checks = {v.check for v in point.verdicts if v.outcome == "refused"}
        return "incomplete" if checks == {MISSING} else "refused"
    outcomes = {v.outcome for v in point.verdicts}
    return next((o for o in ("flagged", "corrected") if o in outcomes), "good")


def _print(result: Import, written: int, output: str | None, *, explain: bool) -> None:
    console = common.console(stderr=output == "-")
    runs = [p for p in result.points if p.is_run]
    if runs and not explain:
        _print_runs(runs, console)
    for point in result.points:
        if explain:
            _explain(point, console)
        elif not point.is_run:
            _print_server(point, console)
    if not explain:
        _print_verdicts(runs, console)
    _print_asks(result, console)
    for name, why in result.unread.items():
        click.echo(f"servefit: {name}: {why}", err=True)
    if runs:
        target = f" written to {output}" if output and output != "-" and written else ""
        console.print(f"{written} of {len(runs)} points are rows{target}", soft_wrap=True)


def _print_runs(runs: list[Point], console: Console) -> None:
    from servefit.units import format_duration

    folders = {f"{Path(point.file).parent}/" for point in runs}
    shared = folders.pop() if len(folders) == 1 else ""

    def time(point: Point, *columns: str) -> str:
        return format_duration(next((v for c in columns if (v := point.number(c))), None))

    common.print_table(
        (
            "point",
            "format",
            "model",
            "input",
            "output",
            "batch",
            "tokens/s",
            "TTFT",
            "TPOT",
            "E2E",
            "verdict",
        ),
        [
            (
                point.place.removeprefix(shared),
                point.format,
                point.shown("model"),
                _short(point, "input_tokens"),
                _short(point, "output_tokens"),
                _short(point, "batch", "mean_batch"),
                _short(point, "total_tokens_per_s"),
                time(point, "ttft_mean_s", "ttft_with_queue_mean_s"),
                time(point, "tpot_mean_s"),
                time(point, "e2e_mean_s"),
                _status(point),
            )
            for point in runs
        ],
        left=("point", "format", "model", "verdict"),
        to=console,
    )


def _short(point: Point, *columns: str) -> str:
    value = next((v for c in columns if (v := point.number(c)) is not None), None)
    return "" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}"


def _print_server(point: Point, console: Console) -> None:
    console.print(f"{point.place}: {point.format}: a server's state, no run", soft_wrap=True)
    for column, reading in point.readings.items():
        if not column.startswith("_"):
            console.print(f"  {column} = {point.shown(column)}  ({reading.source})", soft_wrap=True)
    for verdict in point.verdicts:
        console.print(f"  {verdict.outcome}: {verdict.message}", soft_wrap=True)


def _print_verdicts(runs: list[Point], console: Console) -> None:
    """What was found, each kind once: the first point that it holds for, and how many more."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for point in runs:
        for v in point.verdicts:
            if v.outcome != "agrees":
                found.setdefault((v.outcome, v.check), []).append((point.place, v.message))
    for (outcome, check), said in found.items():
        place, message = said[0]
        more = f" (and {len(said) - 1} more such: --explain)" if len(said) > 1 else ""
        console.print(f"{outcome} ({check}): {place}: {message}{more}", soft_wrap=True)


def _print_asks(result: Import, console: Console) -> None:
    """What to set: asked for, and suggested."""
    runs = sum(point.is_run for point in result.points)
    for key, count in result.missing.items():
        whose = "" if count == runs else f" ({count} of {runs} points)"
        click.echo(f"servefit: the files do not say it, give --set {key}{whose}", err=True)
    offers: dict[str, list[str]] = {}
    for point in result.points:
        for s in point.suggestions if point.is_run else ():
            setting = f"--set {s.column}={_value(s.value)}"
            if setting not in offers.setdefault(s.why, []):
                offers[s.why].append(setting)
    for why, offered in offers.items():
        console.print(f"suggested, not used: {' '.join(offered)} ({why})", soft_wrap=True)
    if offers:
        console.print("confirm with --set KEY=suggested, or --set all=suggested", soft_wrap=True)


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _explain(point: Point, console: Console) -> None:
    console.print(f"{point.place}: {point.format}, {_status(point)}", soft_wrap=True)
    width = max((len(c) for c in point.readings), default=0)
    for column, reading in point.readings.items():
        raw = f" = {reading.raw}" if reading.raw else ""
        how = f"; {reading.how}" if reading.how else ""
        value = f"{column.strip('_'):<{width}}  {point.shown(column):>12}"
        console.print(f"  {value}  from {reading.source}{raw}{how}", soft_wrap=True)
    for note in point.notes:
        console.print(f"  note: {note}", soft_wrap=True)
    for v in point.verdicts:
        console.print(f"  {v.outcome:<9} {v.check}: {v.message}", soft_wrap=True)
