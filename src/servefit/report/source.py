"""Measured runs as a report shows them: observations, what they were, what was wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from servefit.calibration import Reading
from servefit.laws import Observations
from servefit.observations import observe_as
from servefit.runs.table import RunTable

#: Columns that say what was measured, when and on what, and how they are called.
FACTS = {
    "model": "Models",
    "gpu": "GPUs",
    "tensor_parallel_size": "Tensor parallelism",
    "engine": "Engine",
    "engine_version": "Engine version",
    "attention_backend": "Attention kernels",
    "dtype": "Weights",
    "kv_cache_dtype": "KV cache",
    "campaign": "Campaign",
    "measured_at": "Measured at",
    "source_file": "Rows come from",
}
#: More different values than this are counted and not listed.
LISTED = 6


@dataclass(frozen=True)
class Source:
    """Measured runs behind a report.

    Attributes:
        observations: what a law sees of them.
        facts: name and value of what was measured, when, on what.
        problems: one sentence for each row that was refused, flagged or left out.
    """

    observations: Observations
    facts: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = ()


def source_of(table: RunTable, reading: Reading) -> Source:
    """A checked table of runs as a report shows it.

    Args:
        table: the runs.
        reading: how the calibration read its own, see `Calibration.reading`.

    Raises:
        ServefitError: no row can be used; a model or GPU is unknown.
    """
    observed = observe_as(table.frame, reading)
    facts = [("Runs", f"{table.frame.height} rows of {', '.join(map(_name, table.paths))}")]
    if str(reading):
        facts.append(("Rows are read as for the fit", str(reading)))
    for column, name in FACTS.items():
        if column not in table.frame.columns:
            continue
        values = sorted({str(v) for v in table.frame[column].drop_nulls().to_list()})
        if values:
            listed = ", ".join(values)
            many = f"{len(values)} values, {values[0]} to {values[-1]}"
            facts.append((name, listed if len(values) <= LISTED else many))
    problems = [
        f"{_name(p.file)}{'' if p.row is None else f', row {p.row}'} {p.severity}: "
        + (f"{p.column} = {p.value}: " if p.column else "")
        + p.reason
        for p in table.problems
    ]
    problems += [f"row {row} left out: {reason}" for row, reason in observed.unusable]
    return Source(observed.observations, facts, problems)


def _name(path: str) -> str:
    return "standard input" if path == "-" else Path(path).name
