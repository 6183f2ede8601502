"""``servefit profile``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.profile_dry import look
from servefit.cli.profile_offline import VLLM_OFFLINE, look_offline, profile_offline
from servefit.cli.profile_options import (
    auto_options,
    chooser_of,
    items,
    one_setting,
    options_of,
    refuse_given,
    server_and_run_options,
    settings_of,
    target_of,
)
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.profiling.campaign import Options
    from servefit.profiling.plan import Point
    from servefit.profiling.session import Target

#: What names points one by one.
LENGTHS = ("input_tokens", "output_tokens", "trace")
OF_POINTS = ("batch", "rate", "arrivals", *LENGTHS, "sets", "repeats")
NOT_AUTO = ("rate", "arrivals", "trace", "repeats", "plan")


@click.command(name="profile")
@click.argument("url", required=False)
@click.option("--batch", metavar="N,...", help="Requests to keep in flight (closed loop).")
@click.option("--input-tokens", metavar="LEN,...", help="Prompt lengths; see below.")
@click.option("--output-tokens", metavar="LEN,...", help="Answer lengths; see below.")
@click.option("--rate", metavar="R,...", help="Arrivals per second instead (open loop).")
@click.option(
    "--arrivals",
    metavar="KIND,...",
    show_default="poisson",
    help="poisson or constant at --rate, or trace: replay the trace's own times.",
)
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(),
    help="CSV of arrival_s, input_tokens, output_tokens (or as Azure publishes them): lengths "
    "from there.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="NAME=V,...",
    help="Values of {NAME} in --launch; the server is started for each. Repeatable.",
)
@click.option("--repeats", type=click.IntRange(1), default=1, help="Measure each point so often.")
@click.option("--plan", metavar="FILE", type=click.Path(), help="YAML plan of points; - for stdin.")
@click.option(
    "--auto",
    type=click.IntRange(2),
    metavar="N",
    help="Choose up to N of the points by what they teach per second, and stop when the fit is "
    "sure; --batch lists what to choose from (default: 1, 2, 4, ... up to the seats).",
)
@click.option("--dry-run", is_flag=True, help="Find out about the server, list the points, stop.")
@auto_options
@common.json_option
@server_and_run_options
def command(
    url: str | None,
    batch: str | None,
    input_tokens: str | None,
    output_tokens: str | None,
    rate: str | None,
    arrivals: str | None,
    trace: str | None,
    sets: tuple[str, ...],
    repeats: int,
    plan: str | None,
    auto: int | None,
    dry_run: bool,
    as_json: bool,
    output: str,
    **shared: Any,
) -> None:
    """Measure a live OpenAI-compatible server at URL and write a table of runs.

    Each point holds a number of requests in flight (or an arrival rate) with random prompts of
    exact lengths, waits for a steady state, and ends when throughput and latency are known well
    enough. A row is appended as soon as its point is done; the same command again continues with
    what is missing. `servefit fit` takes the file as it is. The exit status is 1 if a point failed
    or --max-time was up before the last one.

    LEN is a number of tokens, uniform:LOW:HIGH or lognormal:MEAN:CV.

    \b
    Examples:
      servefit profile http://localhost:8000 --batch 1,8,64 --input-tokens 128 --output-tokens 64
      servefit profile http://localhost:8000 --rate 2,4 --trace trace.csv --max-point-time 300
      servefit profile --launch 'vllm serve MODEL --max-num-seqs {max_num_seqs} --port {port}' \\
          --set max_num_seqs=16,64 --batch 64 --input-tokens 256 --output-tokens 128 --gpu H100

    Without a server, `--engine vllm-offline --model FOLDER` runs static batches on vLLM's engine in
    this process, from a config.json alone (dummy weights), and also writes every step's time to
    runs.steps.jsonl; --set NAME=V then sets vLLM's engine argument NAME:

    \b
      servefit profile --engine vllm-offline --model ./opt-1.3b --batch 1,8,64 \\
          --input-tokens 128 --output-tokens 64 --set enforce_eager=true
    """
    from servefit.cli.profile_run import require_extra

    require_extra()
    from servefit.profiling.plan import in_order

    options = options_of(shared)
    offline = shared["engine"] == VLLM_OFFLINE
    target = None if offline else target_of(url, shared)
    looked: dict[str, Any] | None = None
    if auto is None:
        refuse_given(("law", "auto_precision"), "no --auto: nothing is fitted")
    else:
        refuse_given(NOT_AUTO, "--auto: that chooses a --batch for given lengths")
    if plan is not None:
        refuse_given(OF_POINTS, "--plan: a plan names its points itself")
    if auto is not None:
        if target is None:
            raise ServefitError(f"--auto and --engine {VLLM_OFFLINE}: name the points")
        loads = items(input_tokens), items(output_tokens), items(batch)
        setting = one_setting(sets)
        if dry_run:
            say = partial(click.echo, err=True)
            chooser = chooser_of(shared, auto, loads, target, setting, say)
            looked = look(target, setting, options.max_time_s, chooser.choices)
        else:
            rows, late = _run_auto(auto, loads, target, options, output, setting, shared)
    else:
        points = _points(
            plan,
            batch=items(batch),
            rate=items(rate),
            arrivals=items(arrivals),
            input_tokens=items(input_tokens),
            output_tokens=items(output_tokens),
            trace=[trace] if trace else [],
            settings=settings_of(sets),
            repeats=repeats,
        )
        if target is None and dry_run:
            looked = look_offline(points, shared)
        elif target is None:
            rows, late = profile_offline(points, options, output, shared)
        elif dry_run:
            ordered = in_order(points)
            looked = look(target, ordered[0].settings, options.max_time_s, lambda _: ordered)
        else:
            rows, late = _run(points, target, options, output)
    if looked is not None:
        if as_json:
            common.echo_json(looked)
        return
    if as_json:
        common.echo_json(rows)
    elif rows:
        print_rows(rows)
        good = sum(row["status"] == "ok" for row in rows)
        then = f"; next, `servefit fit {output} -o fit.json`" if good else ""
        click.echo(f"{good} of {len(rows)} points measured, rows added to {output}{then}")
    elif not late:
        click.echo(f"Nothing was missing in {output}.")
    if late or any(row["status"] != "ok" for row in rows):
        sys.exit(1)


def _points(plan: str | None, **cross_of: Any) -> list[Point]:
    from servefit.profiling.plan import cross, read_plan

    if plan is None:
        return cross(**cross_of)
    return read_plan(common.read_text(plan), plan)


def _run(
    points: Sequence[Point], target: Target, options: Options, output: str
) -> tuple[list[dict[str, Any]], bool]:
    """The rows, and whether the time was up before the last point."""
    from servefit.cli.profile_display import ConsoleDisplay
    from servefit.cli.profile_run import run_loop, say_if_late
    from servefit.profiling.campaign import Campaign
    from servefit.profiling.journal import Journal

    display = ConsoleDisplay(common.console(stderr=True))
    with Journal(output) as journal, display.live():
        campaign = Campaign(target, journal, options, display)
        rows = run_loop(campaign.run(points))
    return rows, say_if_late(campaign)


def _run_auto(
    most: int,
    loads: tuple[list[str], list[str], list[str]],
    target: Target,
    options: Options,
    output: str,
    setting: tuple[tuple[str, str], ...],
    shared: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], bool]:
    """Points chosen by what they teach; the rows, and whether the time was up before it ended."""
    from servefit.cli.profile_display import ConsoleDisplay
    from servefit.cli.profile_run import run_loop, say_if_late
    from servefit.profiling.campaign import Campaign
    from servefit.profiling.journal import Journal

    display = ConsoleDisplay(common.console(stderr=True), most)
    chooser = chooser_of(shared, most, loads, target, setting, display.say)
    with Journal(output) as journal, display.live():
        campaign = Campaign(target, journal, options, display)
        rows = run_loop(campaign.run_adaptively(chooser, setting))
    return rows, say_if_late(campaign, then=", and what is chosen after it")


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The measured points as a table."""
    ok = [row for row in rows if row["status"] == "ok"]
    failed = [row for row in rows if row["status"] != "ok"]
    if ok:
        headers = ["load", "input", "output", "mean batch", "tokens/s", "±", "TTFT", "TPOT", "E2E"]
        common.print_table([*headers, "remarks"], map(_cells, ok), left=["remarks"])
    for row in failed:
        click.echo(f"failed: {_load(row)}: {row['error_detail']}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    def show(name: str, form: str, factor: float = 1.0, unit: str = "") -> str:
        value = row[name]
        return "?" if value is None else format(value * factor, form) + unit

    return [
        _load(row),
        show("input_tokens", ".5g"),
        show("output_tokens", ".5g"),
        show("mean_batch", ".4g"),
        show("total_tokens_per_s", ",.1f"),
        show("total_tokens_per_s_rel_err", ".1%"),
        show("ttft_with_queue_mean_s", ".4g", 1e3, " ms"),
        show("tpot_mean_s", ".4g", 1e3, " ms"),
        show("e2e_with_queue_mean_s", ".4g", unit=" s"),
        row["flags"] or "",
    ]


def _load(row: Mapping[str, Any]) -> str:
    if row["concurrency"] is not None:
        return f"{row['concurrency']} in flight"
    rate = row["request_rate_per_s"]
    return "replay" if rate is None else f"{rate:g}/s {row['arrivals']}"
