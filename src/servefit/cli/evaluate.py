"""``servefit evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.evaluation import Coverage, Score
    from servefit.observations import BatchFrom, ContextFrom


@click.command(name="evaluate")
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option(
    "--law",
    help="Laws to score, with commas between: slim,step.  [default: step; slim for runs on a CPU]",
)
@common.where_option
@common.selection_option(
    "--train", "Rows to fit on, as --where; `none`: the law's prediction without data."
)
@common.selection_option("--test", "Rows to test, as --where. Default: all not trained on.")
@common.observation_options
@click.option("--rows", "show_rows", is_flag=True, help="Show every tested row.")
@common.json_option
def command(
    runs: tuple[str, ...],
    law: str | None,
    where: tuple[str, ...],
    train: tuple[str, ...],
    test: tuple[str, ...],
    batch_from: BatchFrom,
    context_from: ContextFrom,
    gpu: str | None,
    show_rows: bool,
    as_json: bool,
) -> None:
    """Score laws on rows of RUNS that they have not seen.

    Each law is fitted on the --train rows and predicts the --test rows; the error is MAPE on total
    throughput and on E2E, or on the step time of a table of engine steps. Rows trained on are never
    tested.

    \b
    Examples:
      servefit evaluate runs.csv --where campaign=fixed_lengths \\
          --train output_tokens=..300 --train preemptions=0 --test output_tokens=390
      servefit evaluate runs.csv --train row%2=0 --test row%2=1 --rows
    """
    from servefit import api
    from servefit.evaluation import evaluate
    from servefit.laws import get_law

    if not train:
        raise ServefitError("--train is missing: say which rows to fit on, or `--train none`")
    table = common.load_rows(runs, where, gpu=gpu)
    laws = [get_law(name.strip()) for name in (law or api.default_law(table)).split(",")]
    scores = [
        evaluate(
            table,
            each,
            train=None if train == ("none",) else common.mask(table, train, "--train"),
            test=common.mask(table, test, "--test"),
            batch_from=batch_from,
            context_from=context_from,
            gpu=api.as_hardware(gpu),
        )
        for each in laws
    ]
    if as_json:
        common.echo_json(_document(scores, show_rows, [p.as_dict() for p in table.refused]))
    else:
        _report(scores, show_rows)


def _document(
    scores: Sequence[Score], show_rows: bool, refused: list[dict[str, Any]]
) -> dict[str, Any]:
    laws = {}
    for score in scores:
        entry: dict[str, Any] = {
            "throughput_mape_pct": score.throughput_mape_pct,
            "e2e_mape_pct": score.e2e_mape_pct,
            "step_time_mape_pct": score.step_time_mape_pct,
            "coverage_90_pct": score.coverage and score.coverage.pct,
            "coverage_90_count": score.coverage and score.coverage.count,
            "coverage_90_range": score.coverage and [score.coverage.low, score.coverage.high],
            "n_train": score.n_train,
            "n_test": score.n_test,
        }
        if score.reason is not None:
            entry["reason"] = score.reason
        if score.unusable:
            entry["unusable"] = [{"row": row, "reason": reason} for row, reason in score.unusable]
        if score.calibration is not None:
            entry["notes"] = score.calibration.notes
        if show_rows:
            entry["rows"] = [asdict(row) for row in score.rows]
        laws[score.law] = entry
    return {"laws": laws, "refused": refused}


def _report(scores: Sequence[Score], show_rows: bool) -> None:
    common.print_table(
        [
            "law",
            "throughput MAPE",
            "E2E MAPE",
            "step time MAPE",
            "in 90 % interval",
            "trained on",
            "tested",
        ],
        (
            (
                score.law,
                _percent(score.throughput_mape_pct),
                _percent(score.e2e_mape_pct),
                _percent(score.step_time_mape_pct),
                _covered(score.coverage),
                score.n_train,
                score.n_test,
            )
            for score in scores
        ),
        left=["law"],
    )
    for score in scores:
        if score.reason is not None:
            click.echo(f"{score.reason}.")
        for row, reason in score.unusable:
            click.echo(f"{score.law}: row {row} left out: {reason}.")
        for note in score.calibration.notes if score.calibration else ():
            click.echo(f"{score.law}: {note}.")
        if show_rows and score.rows:
            _report_rows(score)
    if any(score.coverage for score in scores):
        click.echo(
            "In 90 % interval: how many measurements the law's interval holds; in brackets what "
            "chance allows (95 % binomial range)."
        )


def _report_rows(score: Score) -> None:
    from servefit.evaluation import RowScore, StepScore
    from servefit.units import format_duration

    steps = [r for r in score.rows if isinstance(r, StepScore)]
    if steps:
        common.print_table(
            [
                "row",
                "TP",
                "prefill",
                "decodes",
                "context",
                "measured",
                "predicted",
                "error",
                "90 %",
            ],
            (
                (
                    r.row,
                    f"{r.tensor_parallel_size:g}",
                    f"{r.prefill_tokens:g}",
                    f"{r.decode_requests:g}",
                    f"{r.decode_context_tokens:g}",
                    format_duration(r.measured_s),
                    format_duration(r.predicted_s),
                    f"{r.error_pct:+.1f} %",
                    _outside(r.measured_s, r.low_s, r.high_s),
                )
                for r in steps
            ),
            title=f"{score.law}: step times, measured against predicted",
        )
        return
    runs = [r for r in score.rows if isinstance(r, RowScore)]
    common.print_table(
        [
            *("row", "model", "input", "output", "batch", "measured", "predicted", "error"),
            *("90 %", "E2E", "->"),
        ],
        (
            (
                r.row,
                r.model,
                f"{r.input_tokens:g}",
                f"{r.output_tokens:g}",
                f"{r.batch:.4g}",
                f"{r.measured_tokens_per_s:,.0f}",
                f"{r.predicted_tokens_per_s:,.0f}",
                f"{r.error_pct:+.1f} %",
                _outside(r.measured_tokens_per_s, r.low_tokens_per_s, r.high_tokens_per_s),
                format_duration(r.measured_e2e_s),
                format_duration(r.predicted_e2e_s),
            )
            for r in runs
        ),
        title=f"{score.law}: tokens/s and E2E, measured against predicted",
        left=["model"],
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"


def _covered(coverage: Coverage | None) -> str:
    if coverage is None:
        return "-"
    return f"{coverage.count}/{coverage.of} [{coverage.low}..{coverage.high}]"


def _outside(measured: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "-"
    return "in" if low <= measured <= high else "below" if measured < low else "above"
