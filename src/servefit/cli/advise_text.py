"""The advice as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import click

from servefit.advise import Advice
from servefit.advise.curve import LATENCIES
from servefit.advise.decision import END, PEAK, Candidate
from servefit.cli import common
from servefit.memory import KvMemory, Reservation
from servefit.units import format_bytes, format_duration, format_rate

_BOUNDS = {
    END: "the largest candidate",
    PEAK: "nothing: throughput does not grow beyond it",
}


def print_advice(advice: Advice, warnings: Sequence[str]) -> None:
    """Recommendation, table, memory, settings, notes: in that order."""
    click.echo(headline(advice))
    _table(advice)
    for slo in advice.objective.slos:
        if slo.origin:
            click.echo(f"SLO {slo} is {slo.origin}.")
    for line in (*_memory(advice), *_replicas(advice)):
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


def headline(advice: Advice) -> str:
    """The recommendation in one sentence."""
    chosen, curve = advice.decision.chosen, advice.curve
    latencies = ", ".join(
        f"{name.upper()} {format_duration(chosen.latency_s[name])}"
        for name in LATENCIES
        if not math.isnan(chosen.latency_s[name])
    )
    held = ""
    if curve.confidence is not None and advice.objective.slos:
        held = f"; SLOs hold with {curve.confidence:.0%} confidence"
    bounds = " and ".join(_BOUNDS.get(b, b) for b in advice.decision.bounded_by)
    return (
        f"Batch cap {chosen.batch_cap}: {format_rate(chosen.total_tokens_per_s)} "
        f"({format_rate(chosen.requests_per_s, 'requests')}) at {latencies}; "
        f"bounded by {bounds}{held}."
    )


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


def _memory(advice: Advice) -> list[str]:
    memory = advice.memory
    if memory is None or advice.kv_bytes is None:
        return []
    cap = advice.decision.chosen.batch_cap
    of_one = f"{memory.request_tokens:,.6g} tokens, {format_bytes(memory.request_bytes)} each"
    needed = f"KV cache on each GPU: {format_bytes(advice.kv_bytes)}"
    lines = [
        f"{needed} = {cap} requests x {of_one}."
        if memory.probability is None
        else f"{needed} holds {cap} running requests, on average {of_one}, with "
        f"{memory.probability:.4g} probability."
    ]
    held = memory.reservation
    if held is None:
        lines.append("Memory freed: unknown, as is the GPU's memory; name it with --gpu.")
    elif advice.freed_bytes is None:
        lines.append(f"{advice.settings.engine} takes no more than that by itself.")
    elif advice.freed_bytes < 0:
        lines.append(
            f"Memory freed: none of {format_bytes(held.kv_bytes)} ({_reservation(memory, held)}); "
            "the runs fitted because requests are not all at their end at once."
        )
    else:
        lines.append(
            f"Memory freed on each GPU: {format_bytes(advice.freed_bytes)} of the "
            f"{format_bytes(held.kv_bytes)} that {advice.settings.engine} would take "
            f"({_reservation(memory, held)})."
        )
    return lines


def _reservation(memory: KvMemory, held: Reservation) -> str:
    parts = f"{format_bytes(held.weight_bytes)} weights"
    if held.other_bytes:
        assumed = ", assumed: give --other-memory" if memory.other_is_assumed else ""
        parts += f" - {format_bytes(held.other_bytes)} other{assumed}"
    total = format_bytes(held.gpu_memory_bytes)
    if held.share_of_free:
        return f"{held.utilization:g} x ({total} - {parts})"
    return f"{total} x {held.utilization:g} - {parts}"


def _replicas(advice: Advice) -> list[str]:
    answer = advice.replicas
    if answer is None:
        return []
    each = format_rate(answer.requests_per_s, "requests")
    held = advice.curve.confidence
    sure = "" if held is None else f" with {held:.0%} confidence"
    plural = "replica" if answer.count == 1 else "replicas"
    return [
        f"{answer.count} {plural}: each completes {each}{sure} and is used to "
        f"{answer.utilization:.0%}; the latencies leave queueing out."
    ]
