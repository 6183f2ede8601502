"""``servefit study``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.observations import BatchFrom
    from servefit.study.run import Result


@click.command(name="study")
@click.argument("study", metavar="STUDY.toml|paper")
@click.argument("more_runs", nargs=-1, metavar="", type=click.Path())
@click.option(
    "--runs", multiple=True, type=click.Path(), help="Tables of runs; several may follow."
)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write."
)
@common.where_option
@click.option(
    "--batch-from",
    type=click.Choice(["mean_batch", "max_num_seqs"]),
    default="mean_batch",
    show_default=True,
    help="The batch that a law is given: the measured mean (or the static batch), or the cap.",
)
@click.option("--gpu", metavar="NAME", help="What the rows ran on, where they do not say it.")
@click.option("--figures/--no-figures", default=True, help="Draw figures (needs servefit[plot]).")
@common.json_option
def command(
    study: str,
    more_runs: tuple[str, ...],
    runs: tuple[str, ...],
    output: Path,
    where: tuple[str, ...],
    batch_from: BatchFrom,
    gpu: str | None,
    figures: bool,
    as_json: bool,
) -> None:
    """Run a declared evaluation on tables of runs and write a folder.

    `paper` is the evaluation of the SLIM paper: five ways to predict runs that were not measured,
    ablation, batch-cap decisions, profiling saved and profiling economy, with the paper's own
    numbers beside yours. Settings that your runs cannot answer are reported as such.

    The folder holds report.md, index.html (interactive), tables/ (Markdown, CSV, JSON), figures/
    (PNG, SVG) and study.json (settings, fingerprint of the data, versions).

    \b
    Examples:
      servefit study paper --runs runs.csv -o out/
      servefit study paper --runs a.csv b.csv --where gpu=H100 -o out/
      servefit study my_study.toml --runs runs.csv -o out/ --no-figures
    """
    from servefit import api
    from servefit.study.bench import bench_of
    from servefit.study.provenance import provenance_of
    from servefit.study.run import require_plot, run_study
    from servefit.study.settings import load_study
    from servefit.study.write import write_study

    start = time.monotonic()
    files = (*runs, *more_runs)
    if not files:
        raise ServefitError("--runs is missing: say which tables of runs to study")
    declared, text = load_study(study)
    if figures:
        require_plot()
    if output.exists() and not output.is_dir():
        raise ServefitError(f"{output}: is a file: give a folder with -o")
    table = common.load_rows(files, where)
    bench = bench_of(table, declared.where, gpu=api.as_hardware(gpu), batch_from=batch_from)
    options: dict[str, object] = {"where": list(where), "batch_from": batch_from, "gpu": gpu}
    provenance = provenance_of(bench, text, files, options)
    with common.console(stderr=True).status("reading") as status:

        def progress(what: str) -> None:
            status.update(what)

        result = run_study(declared, bench, provenance, progress, draw=figures)
        written = write_study(result, output, progress)
    seconds = time.monotonic() - start
    if as_json:
        common.echo_json(
            {
                "folder": str(output),
                "files": [str(path.relative_to(output)) for path in written],
                "tables": {
                    t.name: {"rows": t.rows, "notes": t.notes}
                    for s in result.sections
                    for t in s.tables
                },
                "seconds": seconds,
            }
        )
        return
    _report(result)
    click.echo(f"{len(written)} files in {output}, in {seconds:.0f} s: open {output}/report.md")


def _report(result: Result) -> None:
    """The table of errors, which is what most people want to see first."""
    for table in (t for s in result.sections for t in s.tables if t.name == "table_3_errors"):
        common.print_table(
            [c.header for c in table.columns],
            [[c.show(row.get(c.key)) for c in table.columns] for row in table.rows],
            title=table.title,
            left=["setting", "law"],
        )
        for note in table.notes:
            click.echo(f"{note}.")
