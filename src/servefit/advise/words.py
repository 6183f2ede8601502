"""The advice in sentences."""

from __future__ import annotations

import math

from servefit.advise.advisor import Advice
from servefit.advise.curve import LATENCIES
from servefit.advise.decision import END, PEAK
from servefit.memory import KvMemory, Reservation
from servefit.units import format_bytes, format_confidence, format_duration, format_rate

_BOUNDS = {
    END: "the largest candidate",
    PEAK: "nothing: throughput does not grow beyond it",
}


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
        held = f"; SLOs hold with {format_confidence(curve.confidence)} confidence"
    bounds = " and ".join(_BOUNDS.get(b, b) for b in advice.decision.bounded_by)
    return (
        f"Batch cap {chosen.batch_cap}: {format_rate(chosen.total_tokens_per_s)} "
        f"({format_rate(chosen.requests_per_s, 'requests')}) at {latencies}; "
        f"bounded by {bounds}{held}."
    )


def memory_sentences(advice: Advice) -> list[str]:
    """What the KV cache needs at the cap, and what that frees; empty where the model is unknown."""
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
        f"{memory.probability:.10g} probability."
    ]
    held = memory.reservation
    if held is None:
        lines.append("Memory freed: unknown, as is the GPU's memory; name it with --gpu.")
    elif advice.freed_bytes is None:
        lines.append(f"{advice.settings.engine} takes no more than that by itself.")
    elif advice.freed_bytes < 0:
        lines.append(
            f"Memory freed: none of {format_bytes(held.kv_bytes)} ({_reservation(memory, held)}); "
            f"{_why_more_fits(memory, held)}."
        )
    else:
        lines.append(
            f"Memory freed on each GPU: {format_bytes(advice.freed_bytes)} of the "
            f"{format_bytes(held.kv_bytes)} that {advice.settings.engine} would take "
            f"({_reservation(memory, held)})."
        )
    return lines


def _why_more_fits(memory: KvMemory, held: Reservation) -> str:
    """How a cap can need more than the memory leaves: as was given, or as runs have shown."""
    capacity = memory.capacity_bytes
    if memory.capacity_tokens is None or capacity is None or capacity <= held.kv_bytes:
        return "the runs fitted because requests are not all at their end at once"
    return (
        "the KV capacity given is more than this GPU's memory leaves "
        f"({format_bytes(capacity)} against {format_bytes(max(held.kv_bytes, 0.0))})"
    )


def _reservation(memory: KvMemory, held: Reservation) -> str:
    parts = f"{format_bytes(held.weight_bytes)} weights"
    if held.other_bytes:
        assumed = ", assumed: give --other-memory" if memory.other_is_assumed else ""
        parts += f" - {format_bytes(held.other_bytes)} other{assumed}"
    total = format_bytes(held.gpu_memory_bytes)
    if held.share_of_free:
        return f"{held.utilization:g} x ({total} - {parts})"
    return f"{total} x {held.utilization:g} - {parts}"


def replica_sentences(advice: Advice) -> list[str]:
    """How many replicas serve the rate that was asked about; empty without one."""
    answer = advice.replicas
    if answer is None:
        return []
    each = format_rate(answer.requests_per_s, "requests")
    held = advice.curve.confidence
    more = answer.count_with_confidence
    sure = (
        ""
        if held is None or more is None
        else f" ({more} with {format_confidence(held)} confidence)"
    )
    plural = "replica" if answer.count == 1 else "replicas"
    return [
        f"{answer.count} {plural}{sure}: each completes {each} and is used to "
        f"{answer.utilization:.0%}; the latencies leave queueing out."
    ]
