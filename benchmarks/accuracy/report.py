"""``docs/accuracy.md``: generated tables inside the text of ``template.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.accuracy import ablation, decisions, mistral, noise
from benchmarks.accuracy.plots import plot
from benchmarks.accuracy.priors import without
from benchmarks.accuracy.settings import Setting, error_pct, score, settings
from servefit.evaluation import Coverage, RowScore, Score, StepScore
from servefit.laws import get_law
from servefit.laws.step import StepLaw
from servefit.laws.step.parameters import PRIORS, Prior
from servefit.units import format_duration

H100 = "h100_memory_gap/runs.csv"
#: The paper's errors (MAPE of throughput, %) in settings of the same kind as ours.
PAPER = {"same curve": 15.1, "model": 24.3, "output length": 5.6}
#: Mean coverage that the intervals must have over the settings, %.
COVERAGE = (85.0, 97.0)


@dataclass(frozen=True)
class Scored:
    """A setting with the scores of both laws; ``mechanical`` has priors that never saw the file."""

    setting: Setting

    @cached_property
    def step(self) -> Score:
        return score(self.setting, StepLaw())

    @cached_property
    def slim(self) -> Score:
        return score(self.setting, get_law("slim"))

    @cached_property
    def mechanical(self) -> Score:
        return score(self.setting, StepLaw(priors=without((self.setting.file,))))


def write(docs: Path) -> list[str]:
    """Write the page and its figures; returns one line for each bar that is missed."""
    scored = [Scored(s) for s in settings()]
    table = [s for s in scored if s.setting.in_table]
    chosen = decisions.choices(StepLaw())
    parts = {
        "bars": _bars(table),
        "coverage": _coverage_summary(table),
        "slim": _slim(table),
        "further": _further([s for s in scored if not s.setting.in_table]),
        "decisions": _decisions(chosen),
        "tpot": format_duration(decisions.TPOT_LIMIT_S),
        "priors": _priors(),
        "ablation": _ablation(),
        "sensitivity": _sensitivity(),
        "noise": _noise(table),
        "mistral": _mistral(),
        "commands": "\n".join(s.setting.command() for s in table),
        "figures": _figures(table, docs),
    }
    text = (Path(__file__).parent / "template.md").read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    (docs / "accuracy.md").write_text(text, encoding="utf-8")
    return _missed(table, chosen)


def _missed(table: Sequence[Scored], chosen: Sequence[decisions.Choice]) -> list[str]:
    lines = []
    for each in table:
        error, bar, covered = error_pct(each.step), each.setting.bar, each.step.coverage
        if bar is not None and not (error is not None and error <= bar):
            lines.append(f"{each.setting.name}: {error} %, the bar is {bar} %")
        if bar is not None and covered is not None and covered.count < covered.low:
            lines.append(f"{each.setting.name}: {covered.count} of {covered.of} in the interval")
    mean = _mean_coverage(table)
    if not COVERAGE[0] <= mean <= COVERAGE[1]:
        lines.append(f"mean coverage {mean:.1f} %")
    if any(abs(c.error_pct) > 10 for c in chosen) or sum(c.violated for c in chosen) > 1:
        lines.append("decisions: off by more than 10 %, or violated more than once")
    return lines


def _bars(table: Sequence[Scored]) -> str:
    return _markdown(
        (
            *("#", "setting", "trained, tested", "SLIM", "**step**", "bar"),
            *("in 90 % interval", "half-width", "priors apart", "in that 90 % interval"),
        ),
        (
            (
                f"{number}",
                each.setting.title + (" (in-sample)" if each.setting.in_sample else ""),
                f"{each.step.n_train}, {each.step.n_test}",
                _pct(error_pct(each.slim)),
                f"**{_pct(error_pct(each.step))}**",
                "explained" if each.setting.bar is None else f"{each.setting.bar:g}",
                _covered(each.step.coverage),
                f"{half_width_pct(each.step):.0f} %",
                _pct(error_pct(each.mechanical)),
                _covered(each.mechanical.coverage),
            )
            for number, each in enumerate(table, 1)
        ),
    )


def half_width_pct(found: Score) -> float:
    """Median over the rows: how far the interval reaches above the prediction, in percent."""
    ratios = [
        high / predicted
        for high, predicted in map(_ends, found.rows)
        if high is not None and predicted > 0
    ]
    return float(100 * (np.median(ratios) - 1))


def _ends(row: RowScore | StepScore) -> tuple[float | None, float]:
    if isinstance(row, StepScore):
        return row.high_s, row.predicted_s
    return row.high_tokens_per_s, row.predicted_tokens_per_s


def _mean_coverage(table: Sequence[Scored]) -> float:
    """Over the settings with a bar, each counting once."""
    found = [each.step.coverage for each in table if each.setting.bar is not None]
    return float(np.mean([c.pct for c in found if c is not None]))


def _coverage_summary(table: Sequence[Scored]) -> str:
    apart = [each.mechanical.coverage for each in table if each.setting.bar is not None]
    mean_apart = float(np.mean([c.pct for c in apart if c is not None]))
    below = [
        each.setting.name
        for each in table
        if (c := each.step.coverage) is not None and c.count < c.low
    ]
    return (
        f"Averaged over the settings with a bar the 90 % intervals hold "
        f"{_mean_coverage(table):.1f} % of the measurements, and {mean_apart:.1f} % with priors "
        f"that never saw the file. Below their binomial range: {', '.join(below) or 'none'}."
    )


def _slim(table: Sequence[Scored]) -> str:
    by_name = {each.setting.name: each for each in table}
    return _markdown(
        ("setting", "SLIM in the paper", "SLIM here", "E2E here", "step here"),
        (
            (
                by_name[name].setting.title,
                f"{paper}",
                _pct(by_name[name].slim.throughput_mape_pct),
                _pct(by_name[name].slim.e2e_mape_pct),
                _pct(by_name[name].step.throughput_mape_pct),
            )
            for name, paper in PAPER.items()
        ),
    )


def _further(others: Sequence[Scored]) -> str:
    return _markdown(
        (
            *("setting", "trained, tested", "SLIM", "step", "in 90 % interval", "half-width"),
            *("priors apart", "in that 90 % interval"),
        ),
        (
            (
                each.setting.title,
                f"{each.step.n_train}, {each.step.n_test}",
                _pct(error_pct(each.slim)),
                _pct(error_pct(each.step)),
                _covered(each.step.coverage),
                f"{half_width_pct(each.step):.0f} %",
                _pct(error_pct(each.mechanical)),
                _covered(each.mechanical.coverage),
            )
            for each in others
        ),
    )


def _decisions(chosen: Sequence[decisions.Choice]) -> str:
    rows = _markdown(
        ("model", "output", "measured crossing", "point estimate", "error", "at 90 %", "SLO holds"),
        (
            (
                c.model,
                f"{c.output_tokens:g}",
                f"{c.measured:.1f}",
                f"{c.point}",
                f"{c.error_pct:+.1f} %",
                f"{c.confident}",
                "no" if c.violated else "yes",
            )
            for c in chosen
        ),
    )
    violated = sum(c.violated for c in chosen)
    worst = max(abs(c.error_pct) for c in chosen)
    return (
        f"{rows}\n\n{len(chosen)} curves; the point estimate is off by {worst:.1f} % at most; at "
        f"90 % confidence {violated} of {len(chosen)} are violated."
    )


def _priors() -> str:
    apart = {p.name: p for p in without((H100,))}
    return _markdown(
        ("parameter", "median", "log-sd", "why", "without the H100 64 GB data"),
        (
            (
                f"`{p.name}`",
                _value(p),
                f"{p.log_sd:g}",
                p.reason,
                f"{_value(apart[p.name])}, {apart[p.name].log_sd:.2f}",
            )
            for p in PRIORS
        ),
    )


def _value(prior: Prior) -> str:
    if prior.unit != "s":
        return f"{prior.median:.2f}"
    if prior.median < 1e-6:
        return f"{prior.median * 1e9:.3g} ns"
    return format_duration(prior.median)


def _ablation() -> str:
    found = ablation.ablations()
    whole = found["the whole law"]
    numbers = _numbers()

    def cell(errors: ablation.Errors, name: str) -> str:
        changed = abs(errors[name] - whole[name]) >= 0.15
        bar = next(s.bar for s in ablation.scored() if s.name == name) or np.inf
        text = f"{errors[name]:.1f}"
        if errors[name] > bar:
            text = f"**{text}**"
        return text if changed or errors is whole else "·"

    return _markdown(
        ("law", *(str(numbers[name]) for name in whole)),
        ((part, *(cell(errors, name) for name in whole)) for part, errors in found.items()),
    )


def _numbers() -> dict[str, int]:
    """The settings' numbers in the first table."""
    return {s.name: n for n, s in enumerate([s for s in settings() if s.in_table], 1)}


def _sensitivity() -> str:
    whole = ablation.errors(StepLaw())
    bars = {s.name: s.bar or np.inf for s in ablation.scored()}
    numbers = _numbers()

    def broken(errors: ablation.Errors) -> str:
        over = [f"{numbers[n]} ({e:.1f})" for n, e in errors.items() if e > bars[n]]
        return ", ".join(over) or "none"

    def largest(errors: ablation.Errors) -> str:
        name = max(errors, key=lambda n: errors[n] - whole[n])
        return f"{errors[name] - whole[name]:+.1f} at {numbers[name]}"

    rows = [
        (f"`{name}` {sign}1 log-sd", broken(errors), largest(errors))
        for name, both in ablation.sensitivity().items()
        for sign, errors in both.items()
    ]
    for factor in (0.67, 1.5):
        errors = ablation.widths(factor)
        rows.append((f"all widths x {factor:g}", broken(errors), largest(errors)))
    return _markdown(("prior moved", "bars broken (error)", "largest change"), rows)


def _noise(table: Sequence[Scored]) -> str:
    pairs, mean, largest = noise.static_repeats()
    rows = [("repeated static runs, difference of E2E", f"{pairs} pairs", mean, largest)]
    for phase in ("decode", "mixed"):
        count, spread, high = noise.step_cells(phase)
        label = f"{phase} steps of nearly one shape, deviation from their median"
        rows.append((label, f"{count} rows", spread, high))
    text = _markdown(
        ("repeats", "how many", "mean", "largest, or 90 % quantile"),
        ((label, many, f"{a:.2f} %", f"{b:.2f} %") for label, many, a, b in rows),
    )
    floors = _markdown(
        ("#", "setting", "step", "fitted on the tested rows"),
        (
            (
                f"{number}",
                each.setting.title,
                _pct(error_pct(each.step)),
                _pct(noise.floor_pct(each.setting, StepLaw())),
            )
            for number, each in enumerate(table, 1)
        ),
    )
    return f"{text}\n\n{floors}"


def _mistral() -> str:
    rows = []
    for gpu in ("H100", "A100-40GB"):
        for t in (1, 2, 4):
            by_factor = {f: mistral.errors_pct(gpu, t, f) for f in (1, 2, 3, 4)}
            rows.append(
                (
                    f"{gpu}, TP {t}",
                    _signed(by_factor[1][1]),
                    *(_signed(by_factor[f][0]) for f in (1, 2, 3, 4)),
                )
            )
    return _markdown(
        ("Mistral-7B on", "V1 kernel not used", "V1 used", "KV read x 2", "x 3", "x 4"), rows
    )


def _figures(table: Sequence[Scored], docs: Path) -> str:
    lines = []
    for number, each in enumerate(table, 1):
        slug = each.setting.name.lower().replace(",", "").replace(" ", "-")
        path = Path("figures") / "accuracy" / f"{slug}.png"
        plot(each.setting, each.step, each.slim, docs / path)
        lines.append(f"**{number}.** {each.setting.title}\n\n![{each.setting.title}]({path})\n")
    return "\n".join(lines)


def _covered(coverage: Coverage | None) -> str:
    if coverage is None:
        return "-"
    flag = " **below**" if coverage.count < coverage.low else ""
    return f"{coverage.count}/{coverage.of} ({coverage.low}..{coverage.high}){flag}"


def _pct(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0f} %"


def _markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
