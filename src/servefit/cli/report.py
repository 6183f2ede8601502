"""``servefit report``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.question import question_options
from servefit.cli.serving import schedule_options
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.report.view import View

HTML = "html"
FORMATS = (HTML, "png", "svg")


@click.command(name="report")
@click.argument("calibration", type=click.Path())
@click.option(
    "--runs",
    multiple=True,
    type=click.Path(),
    metavar="RUNS",
    help="Measured runs to draw and to judge the fit by. Repeatable.",
)
@common.where_option
@question_options
@schedule_options
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="PATH",
    help="The page (- is standard output), or the folder of the figures. Default: report.html.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default=HTML,
    show_default=True,
    help="One page, or each figure as a file of its own.",
)
def command(
    calibration: str,
    runs: tuple[str, ...],
    where: tuple[str, ...],
    schedule: dict[str, Any],
    output: str | None,
    file_format: str,
    **asked: Any,
) -> None:
    """Write one self-contained HTML page about the batch cap that a CALIBRATION recommends.

    It opens offline and prints: the recommendation and the flags to paste, throughput and latency
    against the batch, what the neighbouring caps trade, why throughput saturates, where the GPU's
    memory goes, how good the fit is, and what was measured. Lengths, model and GPU are those of
    the calibration where it has seen just one.

    \b
    servefit report fit.json --runs runs.csv --slo tpot=30ms -o report.html
    servefit report fit.json --input-tokens 250 --output-tokens 390 --format png -o figures
    """
    from servefit import api
    from servefit.cli.view import asked_view, require
    from servefit.report.source import source_of

    if where and not runs:
        raise ServefitError("--where selects rows of --runs: give these too")
    require("plot", "altair", "jinja2", "vl_convert")
    fit = api.as_calibration(calibration)
    source = source_of(common.load_rows(runs, where), fit.reading) if runs else None
    view = asked_view(fit, asked, schedule)
    if file_format == HTML:
        from servefit.report.page import html

        path = output or "report.html"
        asked_by = shlex.join(["servefit", *sys.argv[1:]])
        common.write_text(path, html(view, source, asked_by))
        if path != "-":
            click.echo(f"{view.sentence}\nWritten to {path}: open it in a browser, or print it.")
        return
    if output == "-":
        raise ServefitError(f"--format {file_format} -o -: figures are files, give a folder")
    folder = Path(output or "report")
    if folder.is_file():
        raise ServefitError(f"{folder}: is a file; figures go into a folder")
    names = _save_figures(view, source, folder, file_format)
    click.echo(f"{view.sentence}\nWritten to {folder}: {', '.join(names)}.")


def _save_figures(view: View, source: Any, folder: Path, file_format: str) -> list[str]:
    from servefit.figures import save
    from servefit.report.figures import figures
    from servefit.report.fit import goodness

    observations = None if source is None else source.observations
    fit = None if observations is None else goodness(view.calibration, observations)
    names = []
    for figure in figures(view, observations, fit).values():
        names.append(f"{figure.name}.{file_format}")
        save(figure.chart, folder / names[-1])
    return names
