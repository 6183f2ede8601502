"""What several files say together: two snapshots of a server, and a server's own settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from servefit.importers import serving
from servefit.importers.formats import prometheus
from servefit.importers.point import Point
from servefit.importers.source import Source

#: Marks a run whose rates wait for the time between its snapshots.
NEEDS_DURATION = "_needs_duration"

#: Settings of a server that a run's file seldom holds.
SERVER_COLUMNS = (
    "model",
    "gpu",
    "engine",
    "engine_version",
    "tensor_parallel_size",
    "dtype",
    "kv_cache_dtype",
    "max_num_seqs",
    "max_num_batched_tokens",
    "chunked_prefill",
    "num_gpu_blocks",
    "block_size",
    "kv_capacity_tokens",
    "gpu_memory_utilization",
    "speculative_decoding",
)


def from_snapshots(points: Sequence[Point]) -> list[Point]:
    """A run from each two consecutive snapshots of one server, by the growth of its counters."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.format == prometheus.NAME and point.has("_generation_tokens"):
            groups.setdefault((point.shown("engine"), point.shown("model")), []).append(point)
    runs = []
    for group in groups.values():
        ordered = sorted(group, key=lambda p: p.number("_generation_tokens") or 0.0)
        runs += [_run(a, b) for a, b in itertools.pairwise(ordered)]
    return runs


def _run(first: Point, last: Point) -> Point:
    point = serving.new_point(
        "two /metrics snapshots", last.file, f"since {first.file}", first.shown("engine")
    )
    for column in SERVER_COLUMNS:
        if column in last.readings:
            point.readings.setdefault(column, last.readings[column])
    growth: dict[str, float] = {}
    for column in last.readings:
        before, after = first.number(column), last.number(column)
        if column.startswith("_") and before is not None and after is not None:
            growth[column] = after - before
    fallen = [column.strip("_") for column, value in growth.items() if value < 0]
    if fallen:
        names = ", ".join(fallen)
        point.say("counters", "refused", f"{names} fell: the server was started anew in between")
        return point
    if "_e2e_count" not in growth:
        point.say("counters", "refused", "the pages count no requests: E2E has no histogram")
        return point
    finished = growth["_e2e_count"]
    if finished <= 0:
        point.say("counters", "refused", "no request ended between the snapshots")
        return point
    point.put("completed", finished, "growth of the E2E count", "", "last - first")
    for column, counter in (("input", "_prompt_tokens"), ("output", "_generation_tokens")):
        if counter in growth:
            how = "growth / requests that ended; those under way at the ends blur it"
            point.put(f"{column}_tokens", growth[counter] / finished, counter.strip("_"), "", how)
    if "_preemptions" in growth:
        point.put("preemptions", growth["_preemptions"], "growth of preemptions")
    means = {
        latency: growth[f"_{latency}_sum_s"] / growth[f"_{latency}_count"]
        for latency in ("ttft", "tpot", "e2e", "queue")
        if growth.get(f"_{latency}_count", 0.0) > 0 and f"_{latency}_sum_s" in growth
    }
    how = "growth of _sum / growth of _count"
    point.put("tpot_mean_s", means.get("tpot"), "histogram", "", how)
    queue = means.get("queue")
    point.put("queue_time_mean_s", queue, "histogram", "", how)
    for latency in ("ttft", "e2e"):
        if latency not in means:
            continue
        if queue is None:
            point.put(f"{latency}_mean_s", means[latency], "histogram", "", how)
            point.notes.append(f"{latency}: from arrival on; the server tells no queue time")
        else:
            point.put(f"{latency}_with_queue_mean_s", means[latency], "histogram", "", how)
            service = max(means[latency] - queue, 0.0) or None
            point.put(f"{latency}_mean_s", service, "histogram", "", f"{how}, less queue time")
    if not point.has("duration_s"):
        _suggest_duration(point, first, last)
    return point


def _suggest_duration(point: Point, first: Point, last: Point) -> None:
    """Snapshots carry no time; that between the files' own is offered."""
    times = [Source(p.file).modified_s() for p in (first, last)]
    if times[0] is not None and times[1] is not None and times[1] > times[0]:
        point.suggest("duration_s", times[1] - times[0], "time between the files' last changes")
    point.put(NEEDS_DURATION, True, "snapshots carry no time")


def suggest_servers(points: Iterable[Point]) -> None:
    """Offer a server's settings to the runs in its folder, where there is one server only."""
    points = list(points)
    servers: dict[PurePath, list[Point]] = {}
    for point in points:
        if not point.is_run:
            servers.setdefault(PurePath(point.file).parent, []).append(point)
    for point in points:
        beside = servers.get(PurePath(point.file).parent, [])
        if not point.is_run or len({p.shown("engine") for p in beside}) != 1:
            continue
        for column in SERVER_COLUMNS:
            values = {p.readings[column].value for p in beside if p.has(column)}
            if len(values) == 1:
                source = next(p for p in beside if p.has(column))
                value = values.pop()
                if isinstance(value, float) and value.is_integer():
                    value = int(value)
                point.suggest(column, value, f"{source.format} beside it, {source.file}")
