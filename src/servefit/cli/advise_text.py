"""The advice as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from servefit.advise import Advice
from servefit.advise.curve import LATENCIES
from servefit.advise.decision import Candidate
from servefit.advise.words import headline, memory_sentences, replica_sentences
from servefit.cli import common
from servefit.units import format_bytes, format_duration, format_rate


def print_advice(advice: Advice, warnings: Sequence[str]) -> None:
    """Recommendation, table, memory, settings, notes: in that order."""
    click.echo(headline(advice))
    _table(advice)
    for slo in advice.objective.slos:
        if slo.origin:
            click.echo(f"SLO {slo} is {slo.origin}.")
    for line in (*memory_sentences(advice), *replica_sentences(advice)):
        click.echo(line)
    settings = advice.settings
    click.echo(f"\n{settings.engine} {settings.form}:")
    for line in settings.text.splitlines():
        click.echo(f"  {line}")
    for note in settings.notes:
        click.echo(f"  - {note}")
    if warnings:
        click.echo("\nMind:")
    for warning in warnings:
        click.echo(f"  - {warning}")


def _table(advice: Advice) -> None:
    chosen = advice.decision.chosen
    rows = [(_cells(chosen, advice), "", "recommended")]
    for other in advice.decision.alternatives:
        change = f"{other.throughput_change:+.1%}"
        rows.append((_cells(other.candidate, advice), change, ", ".join(other.breaks) or "allowed"))
    point = advice.point_estimate
    if point is not None and point.batch_cap != chosen.batch_cap:
        change = f"{point.total_tokens_per_s / chosen.total_tokens_per_s - 1:+.1%}"
        rows.append((_cells(point, advice), change, "without the margin for uncertainty"))
    rows.sort(key=lambda row: int(row[0][0]))
    running = ["batch"] if _differs(advice) else []
    common.print_table(
        [
            "cap",
            *running,
            "throughput",
            "efficiency",
            *(n.upper() for n in LATENCIES),
            "KV",
            "change",
            "",
        ],
        [(*cells, change, remark) for cells, change, remark in rows],
        left=[""],
    )


def _differs(advice: Advice) -> bool:
    """Whether less than the cap runs anywhere."""
    return bool((advice.curve.batch < 0.995 * advice.curve.cap).any())


def _cells(candidate: Candidate, advice: Advice) -> list[str]:
    memory = advice.memory
    kv = None if memory is None else memory.needed_bytes(candidate.batch_cap)
    return [
        str(candidate.batch_cap),
        *([f"{candidate.batch:.4g}"] if _differs(advice) else []),
        format_rate(candidate.total_tokens_per_s),
        "-" if math.isnan(candidate.efficiency) else f"{candidate.efficiency:.2f}",
        *(_latency(candidate, name, advice) for name in LATENCIES),
        format_bytes(kv),
    ]


def _latency(candidate: Candidate, name: str, advice: Advice) -> str:
    shown = format_duration(candidate.latency_s[name])
    limited = any(slo.latency == name for slo in advice.objective.slos)
    if advice.curve.confidence is None or not limited:
        return shown
    return f"{shown} (<= {format_duration(candidate.latency_bound_s[name])})"
