"""``servefit fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.calibration import Calibration
    from servefit.observations import BatchFrom, ContextFrom


@click.command(name="fit")
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option("--law", help="Which law to fit.  [default: step; slim for runs on a CPU]")
@common.where_option
@common.observation_options
@click.option(
    "--decode-form",
    type=click.Choice(["product", "sum"]),
    help="SLIM's Eq. 9: (B+B0)[T_d + KV] (product, as printed), or (B+B0) T_d + B KV (sum).",
)
@click.option("-o", "--output", type=click.Path(), help="Calibration file to write; - for stdout.")
@common.json_option
def command(
    runs: tuple[str, ...],
    law: str | None,
    where: tuple[str, ...],
    batch_from: BatchFrom,
    context_from: ContextFrom,
    gpu: str | None,
    decode_form: Literal["product", "sum"] | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Fit a law to the measured RUNS and write a calibration.

    RUNS are tables of runs (CSV, JSON Lines or Parquet; - is standard input). Rows that contradict
    themselves are left out; `servefit check` lists them. The law step is fitted on tables of engine
    steps as well.

    \b
    Examples:
      servefit fit runs.csv --where preemptions=0 -o fit.json
      servefit fit a.csv b.csv --where model=facebook/opt-1.3b,facebook/opt-2.7b -o fit.json
    """
    from servefit import api
    from servefit.laws.slim import Slim

    if decode_form is not None and law not in (None, "slim"):
        raise ServefitError(f"--decode-form {decode_form}: is SLIM's, but --law {law} was asked")
    calibration = api.fit(
        common.load_rows(runs, where, gpu=gpu),
        Slim(decode_form) if decode_form is not None else law,
        batch_from=batch_from,
        context_from=context_from,
        gpu=gpu,
    )
    if output is not None:
        common.write_text(output, calibration.to_json())
    if output == "-":
        return
    if as_json:
        common.echo_json(calibration)
    else:
        report(calibration)
        if output is not None:
            click.echo(f"Written to {output}: ask it with `servefit predict` or `servefit advise`.")


def report(calibration: Calibration) -> None:
    """What the fit found, and how well."""
    rows = len(calibration.residuals)
    where = f"{', '.join(m.name for m in calibration.models)} on " + ", ".join(
        h.name for h in calibration.hardware
    )
    common.print_table(
        ["parameter", "value", "std. error", "unit", "remark"],
        (
            (
                p.name,
                f"{p.value:.4g}",
                "unknown" if p.stderr is None else f"{p.stderr:.2g}",
                p.unit,
                _remark(p.at_bound, p.identified),
            )
            for p in calibration.parameters
        ),
        title=f"{calibration.law}: {rows} rows of {where}",
        left=["parameter", "unit", "remark"],
    )
    errors = [
        f"{label} {value:.1f} %"
        for label, key in (
            ("throughput", "total_tokens_per_s"),
            ("E2E", "e2e_s"),
            ("step time", "step_time_s"),
        )
        if (value := calibration.train_mape_pct.get(key)) is not None
    ]
    click.echo(f"Training error (MAPE): {', '.join(errors)}.")
    if calibration.residuals:
        worst = max(calibration.residuals, key=lambda r: abs(r.relative))
        click.echo(f"Largest residual: row {worst.row}, {100 * worst.relative:+.1f} %.")
    for note in calibration.notes:
        click.echo(f"Note: {note}.")


def _remark(at_bound: str | None, identified: bool) -> str:
    if at_bound is not None:
        return f"at its {at_bound} bound"
    return "" if identified else "not identified by these runs"
