"""``servefit demo``."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common

if TYPE_CHECKING:
    from servefit.advise import Advice, Infeasible
    from servefit.calibration import Calibration
    from servefit.hardware import Hardware
    from servefit.local.campaign import Campaign, Point, Row
    from servefit.local.demo import Check, Plan, SloCheck


@click.command(name="demo")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="RUNS",
    help="Keep the measured runs in this table (.csv, .jsonl or .parquet). If it is there already, "
    "only what it lacks is measured.",
)
@click.option("--calibration", type=click.Path(), metavar="JSON", help="Keep the fit.")
@click.option("--quick", is_flag=True, help="A first look: a smaller model, single timings.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Cores to compute on. Default: half of the CPUs, as hardware threads share a core.",
)
@common.json_option
def command(
    output: str | None, calibration: str | None, quick: bool, threads: int | None, as_json: bool
) -> None:
    """Measure, fit, advise and verify on a real engine on this machine's CPU.

    CTranslate2 runs a small decoder with random weights as static batches. A few points are
    measured, SLIM is fitted to them and predicts the whole curve, the advisor picks a batch cap,
    and then points that the fit has not seen are measured and set against the prediction. Nothing
    is canned: the numbers are this machine's.

    \b
    Examples:
      servefit demo
      servefit demo -o runs.csv --calibration fit.json
      servefit predict fit.json --input-tokens 64 --output-tokens 32 --batch 1..64
    """
    from servefit.hardware.measure import default_threads
    from servefit.local import demo
    from servefit.local.campaign import Campaign, load_rows
    from servefit.local.decoder import require_ctranslate2

    require_ctranslate2()
    with ExitStack() as stack:
        if output is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="servefit-")))
            path = folder / "runs.csv"
        else:
            path = Path(output)
            folder = path.with_name(f"{path.stem}-models")
        rows = load_rows(path)
        plan = demo.make_plan(folder, quick=quick)
        cores = threads or default_threads()
        machine = demo.machine_of(rows, cores, str(path))
        campaign = Campaign(path, rows, machine, cores, plan.repeats)
        if not as_json:
            _show_machine(machine, found=len(rows))
        _measure(campaign, plan.train, "Measuring")
        fit = demo.fit_slim(plan, rows)
        if calibration is not None:
            common.write_text(calibration, fit.to_json())
        advice = demo.advise(plan, fit)
        if not as_json:
            _show_measured(plan, rows)
            _show_fit(fit)
            _show_curve(plan, fit)
            _show_advice(advice)
        tests = demo.tests_of(plan, advice)
        _measure(campaign, list(tests), "Verifying")
        checks = demo.verify(tests, rows, fit)
    slo = demo.check_slo(plan, rows, advice)
    if as_json:
        common.echo_json(_document(machine, rows, fit, advice, checks, slo))
        return
    _show_checks(checks)
    _show_verdict(slo)
    _show_next(output, calibration)


def _measure(campaign: Campaign, points: Sequence[Point], what: str) -> None:
    """Add the rows that are missing; a bar on stderr."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    missing = len(campaign.missing(points))
    console = common.console(stderr=True)
    if missing and not console.is_terminal:
        console.print(f"{what} {missing} points ...")
    progress = Progress(
        *(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        console=console,
        transient=True,
        # No thread of its own refreshes the bar: it would disturb what is measured.
        auto_refresh=False,
        disable=not console.is_terminal,
    )
    with progress:
        bar = progress.add_task(what, total=len(points), completed=len(points) - missing)
        progress.refresh()
        for _ in campaign.measure_missing(points):
            progress.update(bar, advance=1, refresh=True)


def _show_machine(machine: Hardware, *, found: int) -> None:
    from servefit.units import format_bytes

    flops, bandwidth = machine.peak_flops("float32"), machine.memory_bandwidth_bytes_per_s
    click.echo(
        f"{machine.name}: {(flops or 0) / 1e9:,.0f} GFLOP/s in float32 and "
        f"{(bandwidth or 0) / 1e9:.1f} GB/s, measured; memory {format_bytes(machine.memory_bytes)}."
    )
    if found:
        click.echo(f"{found} rows were measured before: only what is missing is measured now.")


def _show_measured(plan: Plan, rows: Sequence[Row]) -> None:
    from servefit.local.campaign import point_of
    from servefit.units import format_duration, format_rate

    row_of = {point_of(row): row for row in rows}
    shown = [row_of[point] for point in plan.train]
    click.echo(
        f"\n1. Measured: {_model_name(plan.model)} on {shown[0]['engine']} "
        f"{shown[0]['engine_version']}, float32, static batches, median of {plan.repeats}"
    )
    common.print_table(
        ["input", "output", "batch", "throughput", "E2E", "TTFT", "TPOT", "range", "remark"],
        [
            (
                row["input_tokens"],
                row["output_tokens"],
                row["batch"],
                format_rate(row["total_tokens_per_s"]),
                *(format_duration(row[f"{name}_mean_s"]) for name in ("e2e", "ttft", "tpot")),
                f"{100 * row['e2e_range_rel']:.0f} %",
                f"disturbed, waited {100 * row['waited_share']:.0f} %" if row["flags"] else "",
            )
            for row in shown
        ],
        left=["remark"],
    )
    disturbed = sum(row["flags"] is not None for row in rows)
    if disturbed:
        click.echo(
            f"In {disturbed} of {len(shown)} points something else ran on the engine's cores: "
            "expect larger errors, or repeat on a quiet machine."
        )


def _show_fit(fit: Calibration) -> None:
    from servefit.cli.fit import report

    click.echo("\n2. SLIM, fitted to these rows")
    report(fit)


def _show_curve(plan: Plan, fit: Calibration) -> None:
    from servefit.local import demo
    from servefit.units import format_duration, format_rate

    batches, curve = demo.predict_curve(plan, fit)
    rows = []
    for i, batch in enumerate(batches):
        shares = (f"{100 * t[i] / curve.e2e_s[i]:.0f} %" for t in curve.terms_s.values())
        seconds = (curve.e2e_s[i], curve.ttft_s[i], curve.tpot_s[i])
        rate = format_rate(curve.total_tokens_per_s[i])
        rows.append((batch, rate, *map(format_duration, seconds), *shares))
    click.echo(
        f"\n3. Predicted: {_model_name(plan.model)}, input {demo.WORKLOAD[0]}, output "
        f"{demo.WORKLOAD[1]}; the last columns are shares of E2E"
    )
    common.print_table(
        ["batch", "throughput", "E2E", "TTFT", "TPOT", *curve.terms_s],
        rows,
    )


def _show_advice(advice: Advice | Infeasible) -> None:
    from servefit.advise import Infeasible
    from servefit.cli.advise_text import print_advice
    from servefit.local import demo

    click.echo(f"\n4. Advised under the SLO {demo.SLO} (twice the E2E of batch 8)")
    if isinstance(advice, Infeasible):
        click.echo(advice.message)
    else:
        print_advice(advice, advice.notes)


def _show_checks(checks: Sequence[Check]) -> None:
    from servefit.local import demo
    from servefit.units import format_duration, format_rate

    click.echo("\n5. Verified: points that the fit has not seen, measured after it had predicted")
    common.print_table(
        [
            *("unseen", "model", "input", "output", "batch"),
            *("predicted", "measured", "error", "predicted E2E", "measured E2E", "error"),
        ],
        [
            (
                check.what,
                _model_name(check.point.model),
                check.point.input_tokens,
                check.point.output_tokens,
                check.point.batch,
                format_rate(check.predicted["total_tokens_per_s"]),
                format_rate(check.measured["total_tokens_per_s"]),
                f"{check.error_pct['total_tokens_per_s']:+.1f} %",
                format_duration(check.predicted["e2e_mean_s"]),
                format_duration(check.measured["e2e_mean_s"]),
                f"{check.error_pct['e2e_mean_s']:+.1f} %",
            )
            for check in checks
        ],
        left=["unseen", "model"],
    )
    error = demo.mape_pct(checks)
    click.echo(
        f"Mean absolute error: throughput {error['total_tokens_per_s']:.1f} %, "
        f"E2E {error['e2e_mean_s']:.1f} %; TTFT {error['ttft_mean_s']:.1f} % and "
        f"TPOT {error['tpot_mean_s']:.1f} %, which SLIM is not fitted to."
    )
    if max(error["total_tokens_per_s"], error["e2e_mean_s"]) > demo.POOR_PCT:
        click.echo("That is poor: SLIM describes this machine badly, measure before you act.")


def _show_verdict(held: SloCheck | None) -> None:
    from servefit.units import format_duration

    if held is None:
        return
    word = "holds" if held.held else "is missed"
    click.echo(
        f"At the advised batch cap {held.batch_cap} the measured E2E is "
        f"{format_duration(held.measured_s)}: the SLO of {format_duration(held.limit_s)} {word}."
    )


def _show_next(output: str | None, calibration: str | None) -> None:
    if output is None or calibration is None:
        click.echo("Keep the files with -o runs.csv --calibration fit.json.")
        return
    click.echo(
        f"Try: servefit predict {calibration} --input-tokens 64 --output-tokens 32 --batch 1..64\n"
        f"     servefit check {output}"
    )


def _model_name(config_path: str) -> str:
    return Path(config_path).parent.name


def _document(
    machine: Hardware,
    rows: Sequence[Row],
    fit: Calibration,
    advice: Advice | Infeasible,
    checks: Sequence[Check],
    slo: SloCheck | None,
) -> dict[str, Any]:
    """Everything for machines, in SI units."""
    from servefit.advise import Advice
    from servefit.local import demo

    return {
        "hardware": machine,
        "runs": rows,
        "calibration": fit,
        "advice": advice.decision if isinstance(advice, Advice) else advice,
        "checks": checks,
        "mape_pct": demo.mape_pct(checks),
        "slo": slo,
    }
