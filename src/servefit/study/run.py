"""Run a study: everything that it declares, on some runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from servefit import laws
from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.study import accuracy, bca, bca_tables, economy, savings
from servefit.study.accuracy import Accuracy, Progress
from servefit.study.bca import Grown, Measured
from servefit.study.bench import Bench
from servefit.study.provenance import Provenance
from servefit.study.published import OTHER_RUNS, checks_table
from servefit.study.settings import BcaPlan, EconomyPlan, Study
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
class Result:
    """All that a study found."""

    title: str
    sections: tuple[Section, ...]
    provenance: Provenance


def run_study(
    study: Study, bench: Bench, provenance: Provenance, progress: Progress, *, draw: bool = True
) -> Result:
    """Everything that the study declares.

    Args:
        study, bench: what to evaluate on which runs.
        provenance: travels with the result.
        progress: told what is being done.
        draw: make figures, which needs the extra ``plot``.

    Raises:
        ServefitError: a selection names a column that the runs lack, or Altair is missing.
    """
    if draw:
        require_plot()
    splits = resolve(study.setting, bench.table)
    found = accuracy.measure(study, bench, splits, progress)
    sections = [_measured_section(bench)] if draw else []
    sections.append(_accuracy_section(study, bench, found, draw=draw))
    if study.ablation:
        text = "The law is fitted again without one of its terms."
        table = accuracy.ablation_table(bench, found)
        sections.append(Section("What each term of SLIM is worth", text, (table,)))
    curves: dict[str, Measured] = {}
    if study.bca:
        curves, problems = _curves(bench, study.bca)
        sections.append(_decision_section(study.bca, bench, curves, problems, progress, draw=draw))
    text = "What a fit replaces, in points and in time."
    sections.append(Section("Profiling saved", text, (savings.savings_table(bench, splits),)))
    if study.economy:
        decided = study.bca or BcaPlan()
        if not study.bca:
            curves, _ = _curves(bench, decided)
        sections.append(
            _economy_section(study.economy, decided, bench, curves, progress, draw=draw)
        )
    text = (
        "The paper's raw curves are not public. What it prints can still be recomputed from what "
        "else it prints."
    )
    sections.append(Section("The paper's numbers among themselves", text, (checks_table(),)))
    return Result(study.title, tuple(sections), provenance)


def _measured_section(bench: Bench) -> Section:
    from servefit.study.plots import curves

    return Section(
        "Measured curves",
        "Throughput saturates while latency keeps growing.",
        figures=_drawn([curves.by_model(bench), curves.by_length(bench)]),
    )


def _accuracy_section(study: Study, bench: Bench, found: Accuracy, *, draw: bool) -> Section:
    figures: tuple[Figure, ...] = ()
    if draw:
        from servefit.study.plots import fits

        plan = study.figures
        others = [law for law in study.laws if law not in study.baselines]
        figures = _drawn(
            [
                fits.held_out(bench, found, plan.held_out, study.law),
                fits.estimators(bench, found, plan.estimators) if plan.estimators else None,
                fits.carried(bench, found, plan.carried, others[:2]),
            ]
        )
    return Section(
        "Accuracy on what was not measured",
        "Each law is fitted on some runs and predicts others. The paper's own numbers stand beside "
        f"ours. {OTHER_RUNS}.",
        (accuracy.settings_table(bench, found.splits), accuracy.errors_table(study, bench, found)),
        figures,
    )


def _curves(bench: Bench, plan: BcaPlan) -> tuple[dict[str, Measured], list[str]]:
    """Every curve that can be decided on, and why others cannot."""
    curves: dict[str, Measured] = {}
    problems: list[str] = []
    for label, rows in bench.curves():
        try:
            curves[label] = bca.measured_curve_of(bench, label, rows, plan.reference_batch)
        except ServefitError as error:
            problems.append(f"{label}: {error}")
    return curves, problems


def _decision_section(
    plan: BcaPlan,
    bench: Bench,
    curves: dict[str, Measured],
    problems: Sequence[str],
    progress: Progress,
    *,
    draw: bool,
) -> Section:
    grown, absent = bca.grow(bench, plan, curves, progress)
    progress("memory at the advised caps")
    everything = np.ones(bench.table.frame.height, dtype=bool)
    calibrations: dict[str, Calibration] = {}
    for law in plan.laws:
        try:
            calibrations[law] = bench.fit(laws.get_law(law), everything)
        except ServefitError as error:
            absent.append(str(error))
    sensitivity = bca_tables.sensitivity_table(plan, grown)
    memory = bca_tables.memory_table(plan, curves, calibrations)
    figures: tuple[Figure, ...] = ()
    if draw:
        from servefit.study.plots import decisions
        from servefit.study.plots.curves import one_curve_a_model

        law = plan.laws[0]
        one_each = one_curve_a_model(bench)["curve"].unique(maintain_order=True).to_list()
        shown = _shown_targets(bca.fully_trained(grown, law))
        figures = _drawn(
            [
                decisions.sensitivity(plan, sensitivity, shown),
                decisions.memory(memory, law, one_each),
            ]
        )
    return Section(
        "Decisions",
        "The batch cap that a predicted curve leads to, scored on the measured one.",
        (bca_tables.decisions_table(plan, grown, (*absent, *problems)), sensitivity, memory),
        figures,
    )


def _shown_targets(grown: Sequence[Grown]) -> list[str]:
    """Of each target the curve with most caps, the first among equals."""
    best: dict[str, Grown] = {}
    for each in grown:
        held = best.get(each.target.name)
        if held is None or each.measured.curve.cap.size > held.measured.curve.cap.size:
            best[each.target.name] = each
    return [each.measured.label for each in best.values()]


def _economy_section(
    plan: EconomyPlan,
    decisions: BcaPlan,
    bench: Bench,
    curves: dict[str, Measured],
    progress: Progress,
    *,
    draw: bool,
) -> Section:
    trials = economy.trials(bench, plan, list(curves.values()), decisions, progress)
    summaries = economy.summarise(trials)
    figures: tuple[Figure, ...] = ()
    if draw:
        from servefit.study.plots import decisions as plots

        figures = _drawn([plots.economy(summaries, plan.laws)])
    table = economy.economy_table(plan, summaries, len(curves))
    text = "How few points are enough, and what they cost to measure."
    return Section("Profiling economy", text, (table,), figures)


def _drawn(figures: Iterable[Figure | None]) -> tuple[Figure, ...]:
    """The figures that the runs have data for."""
    return tuple(figure for figure in figures if figure is not None)


def require_plot() -> None:
    """Raise `ServefitError` unless figures can be drawn."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise ServefitError(
            "figures need Altair and vl-convert: pip install 'servefit[plot]', or give --no-figures"
        ) from None
