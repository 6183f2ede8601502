"""Run a study: everything that it declares, on some runs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import servefit
from servefit import laws
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.study import accuracy, bca, bca_tables, economy
from servefit.study.accuracy import Accuracy, Progress
from servefit.study.bca import Grown, Measured
from servefit.study.bench import Bench
from servefit.study.economy import Summary
from servefit.study.published import checks_table
from servefit.study.settings import BcaPlan, Study
from servefit.study.splits import resolve
from servefit.study.tables import Table

if TYPE_CHECKING:
    from servefit.study.plots import Figure


@dataclass(frozen=True)
class Section:
    """A part of the report: a heading, what it asks, and what answers."""

    heading: str
    text: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class Provenance:
    """What a study was run on and with; enough to run it again.

    Attributes:
        study: the TOML text.
        options: how rows were selected and given to laws.
        runs: SHA-256 of each file by its name.
        rows: rows studied.
        observations: SHA-256 of the rows as laws see them, whatever their order.
        versions: of servefit and of what it computed and drew with.
    """

    study: str
    options: dict[str, object]
    runs: dict[str, str]
    rows: int
    observations: str
    versions: dict[str, str]


@dataclass(frozen=True)
class Result:
    """All that a study found."""

    title: str
    sections: tuple[Section, ...]
    provenance: Provenance


@dataclass
class _Parts:
    """What later sections take over from earlier ones."""

    accuracy: Accuracy
    grown: list[Grown] = field(default_factory=list)
    curves: dict[str, Measured] = field(default_factory=dict)
    summaries: list[Summary] = field(default_factory=list)


def run_study(
    study: Study, bench: Bench, provenance: Provenance, progress: Progress, *, figures: bool = True
) -> Result:
    """Everything that the study declares.

    Args:
        study, bench: what to evaluate on which runs.
        provenance: travels with the result.
        progress: told what is being done.
        figures: draw them, which needs the extra ``plot``.

    Raises:
        ServefitError: a selection names a column that the runs lack, or Altair is missing.
    """
    if figures:
        require_plot()
    splits = resolve(study.setting, bench.table)
    found = _Parts(accuracy.measure(study, bench, splits, progress))
    sections = [_accuracy_section(study, bench, found)]
    if study.ablation:
        sections.append(_ablation_section(found))
    if study.bca:
        sections.append(_decision_section(study, study.bca, bench, found, progress))
    savings = accuracy.savings_table(bench, splits)
    sections.append(
        Section("Profiling saved", "What a fit replaces, in points and in time.", (savings,))
    )
    if study.economy and study.bca:
        sections.append(_economy_section(study, bench, found, progress))
    sections.append(
        Section(
            "The paper's numbers among themselves",
            "The paper's raw curves are not public. What it prints can still be recomputed from "
            "what else it prints.",
            (checks_table(),),
        )
    )
    if figures:
        progress("figures")
        sections = _with_figures(sections, study, bench, found)
    return Result(study.title, tuple(sections), provenance)


def _accuracy_section(study: Study, bench: Bench, found: _Parts) -> Section:
    return Section(
        "Accuracy on what was not measured",
        "Each law is fitted on some runs and predicts others.",
        (
            accuracy.settings_table(bench, found.accuracy.splits),
            accuracy.errors_table(study, found.accuracy),
        ),
    )


def _ablation_section(found: _Parts) -> Section:
    return Section(
        "What each term of SLIM is worth",
        "The law is fitted again without one of its terms.",
        (accuracy.ablation_table(found.accuracy),),
    )


def _decision_section(
    study: Study, plan: BcaPlan, bench: Bench, found: _Parts, progress: Progress
) -> Section:
    found.grown, problems = bca.grow(bench, plan, progress)
    for label, rows in bench.curves():
        try:
            found.curves[label] = bca.measured_curve_of(bench, label, rows, plan.reference_batch)
        except ServefitError as error:
            problems.append(str(error))
    progress("memory at the advised caps")
    everything = np.ones(bench.table.frame.height, dtype=bool)
    calibrations: dict[str, Calibration] = {}
    for law in plan.laws:
        try:
            calibrations[law] = bench.fit(laws.get_law(law), everything)
        except ServefitError as error:
            problems.append(str(error))
    tables = (
        bca_tables.decisions_table(plan, found.grown, problems),
        bca_tables.sensitivity_table(plan, found.grown),
        bca_tables.memory_table(plan, found.curves, calibrations),
    )
    text = "The batch cap that a predicted curve leads to, scored on the measured one."
    return Section("Decisions", text, tables)


def _economy_section(study: Study, bench: Bench, found: _Parts, progress: Progress) -> Section:
    plan, decisions = study.economy, study.bca
    assert plan is not None
    assert decisions is not None
    curves = list(found.curves.values())
    found.summaries = economy.summarise(economy.trials(bench, plan, curves, decisions, progress))
    table = economy.economy_table(plan, found.summaries, len(curves))
    text = "How few points are enough, and what they cost to measure."
    return Section("Profiling economy", text, (table,))


def _with_figures(
    sections: Sequence[Section], study: Study, bench: Bench, found: _Parts
) -> list[Section]:
    """Sections with their figures, and the measured curves in front."""
    from servefit.study.plots import curves, decisions, fits

    plan, by_heading = study.figures, {}
    by_heading["Accuracy on what was not measured"] = [
        fits.held_out(bench, found.accuracy, plan.held_out, study.law),
        fits.estimators(bench, found.accuracy, plan.estimators) if plan.estimators else None,
        fits.carried(bench, found.accuracy, plan.carried, _carried_laws(study)),
    ]
    if study.bca:
        tables = {t.name: t for s in sections for t in s.tables}
        shown = _shown_targets(bca.fully_trained(found.grown, study.bca.laws[0]))
        one_each = curves.one_curve_a_model(bench)["curve"].unique(maintain_order=True).to_list()
        by_heading["Decisions"] = [
            decisions.sensitivity(study.bca, tables["figure_12_sensitivity"], shown),
            decisions.memory(tables["figure_13_memory"], study.bca.laws[0], one_each),
        ]
    if study.economy:
        by_heading["Profiling economy"] = [decisions.economy(found.summaries, study.economy.laws)]
    measured = Section(
        "Measured curves",
        "Throughput saturates while latency keeps growing.",
        figures=tuple(f for f in (curves.by_model(bench), curves.by_length(bench)) if f),
    )
    return [
        measured,
        *(
            Section(
                s.heading,
                s.text,
                s.tables,
                tuple(f for f in by_heading.get(s.heading, []) if f is not None),
            )
            for s in sections
        ),
    ]


def _carried_laws(study: Study) -> list[str]:
    """The study's law and those that are no baseline."""
    return [law for law in study.laws if law == study.law or law not in study.baselines][:2]


def _shown_targets(grown: Sequence[Grown]) -> list[str]:
    """Of each target the curve with most caps, the first among equals."""
    best: dict[str, Grown] = {}
    for each in grown:
        held = best.get(each.target.name)
        if held is None or each.measured.curve.cap.size > held.measured.curve.cap.size:
            best[each.target.name] = each
    return [each.measured.label for each in best.values()]


def require_plot() -> None:
    """Raise `ServefitError` unless figures can be drawn."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise ServefitError(
            "figures need Altair and vl-convert: pip install 'servefit[plot]', or give --no-figures"
        ) from None


def provenance_of(
    bench: Bench, study_text: str, files: Sequence[str], options: dict[str, object]
) -> Provenance:
    """What identifies the study, its data and its tools."""
    from servefit.laws.support import fingerprint

    everything = np.ones(bench.table.frame.height, dtype=bool)
    tools = ("numpy", "scipy", "polars", "altair", "vl-convert-python")
    return Provenance(
        study=study_text,
        options=options,
        runs={Path(name).name: _sha256(name) for name in files},
        rows=bench.table.frame.height,
        observations=fingerprint(bench.observe(everything).observations),
        versions={
            "servefit": servefit.__version__,
            "python": platform.python_version(),
            **{tool: found for tool in tools if (found := _version(tool)) is not None},
        },
    )


def _sha256(name: str) -> str:
    if name == "-":
        return "standard input"
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
