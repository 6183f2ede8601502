"""The figures that a set of profiles has the data for, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from servefit.characterise import charts
from servefit.characterise.classify import ATTENTION, GEMM
from servefit.characterise.compare import Line
from servefit.characterise.profile import DECODE, PREFILL, Profile
from servefit.characterise.report import PERCENTAGES, attention_table, counter_rows, line_columns
from servefit.characterise.run import Size
from servefit.characterise.work import peaks
from servefit.hardware import Hardware

#: Stall reasons that are drawn one by one.
MOST_STALLS = 5


def figures(
    profiles: Sequence[Profile],
    lines: Sequence[Line],
    title: str,
    hardware: Hardware | None = None,
    dtype: str = "bfloat16",
) -> Iterator[tuple[str, Any]]:
    """Name and chart of each figure; those that the profiles hold nothing for are left out."""
    drawn = [
        ("phases", phases(profiles, f"{title}: prefill and decode")),
        ("utilisation", utilisation(profiles, f"{title}: utilisation")),
        ("shares", shares(lines, f"{title}: decode time by kernel group")),
        ("roofline", roofline(profiles, lines, f"{title}: roofline", hardware, dtype)),
        ("cache_hits", cache_hits(profiles, f"{title}: cache hits of attention kernels")),
        ("stalls", stalls(profiles, f"{title}: attention kernels' stalls")),
        ("attention_share", attention_share(lines, f"{title}: attention's share of decode time")),
        ("attention_bandwidth", attention_bandwidth(lines, title, hardware)),
    ]
    return ((name, chart) for name, chart in drawn if chart is not None)


def phases(profiles: Sequence[Profile], title: str) -> Any:
    """Fig. 3: wall time of prefill and decode, of batches whose steps are marked."""
    steps: dict[tuple[Size, str], list[float]] = {}
    for step in (step for profile in profiles for step in profile.steps):
        if step.size and step.phase in (PREFILL, DECODE):
            steps.setdefault((step.size, step.phase), []).append(step.wall_s)
    rows = []
    for (size, phase), walls in steps.items():
        # A batch has one prefill step, and a decode step a further token.
        times = 1 if phase == PREFILL else size.output_tokens - 1
        seconds = sum(walls) / len(walls) * times
        rows.append({**charts.size_columns(size), "part": phase, "seconds": seconds})
    return charts.stacked_seconds(rows, _sizes(profiles), title)


def utilisation(profiles: Sequence[Profile], title: str) -> Any:
    """Fig. 4: sampled GPU metrics (Nsight Systems), or counters of all kernels (Nsight Compute)."""
    rows = []
    for profile in profiles:
        sampled = _size_of_samples(profile)
        columns = charts.size_columns(sampled) if sampled else {}
        for metric in profile.metrics if sampled else ():
            mean, peak = metric.mean_pct, metric.peak_pct
            rows.append({**columns, "part": metric.name, "mean": mean, "peak": peak})
        for size in _launch_sizes(profile):
            mine = [x for x in profile.launches if profile.part_of_launch(x)[0] == size]
            for field, part in PERCENTAGES[:4]:
                known = [
                    (getattr(x, field), x.duration_s)
                    for x in mine
                    if getattr(x, field) is not None and x.duration_s
                ]
                if known:
                    mean = sum(v * w for v, w in known) / sum(w for _, w in known)
                    peak = max(v for v, _ in known)
                    columns = charts.size_columns(size)
                    rows.append({**columns, "part": part, "mean": mean, "peak": peak})
    return charts.utilisation(rows, _sizes(profiles), title)


def shares(lines: Sequence[Line], title: str) -> Any:
    """Fig. 5: attention, GEMM, other, CPU/idle in decode."""
    rows = [
        {**charts.size_columns(x.size), "part": x.group, "share": x.measured_share}
        for x in lines
        if x.phase == DECODE and x.measured_share
    ]
    return charts.stacked_shares(rows, list(dict.fromkeys(x.size for x in lines)), title)


def roofline(
    profiles: Sequence[Profile],
    lines: Sequence[Line],
    title: str,
    hardware: Hardware | None,
    dtype: str,
) -> Any:
    """Fig. 6: kernels by counters where these are known, else by formula over measured time."""
    if hardware is None or not hardware.has_known_peaks:
        return None
    points = [
        {
            "part": row["kernel_class"],
            "phase": row["phase"] or "",
            "label": size.label if (size := _size_of(row)) else "",
            "intensity": row["intensity_flops_per_byte"],
            "flops_per_s": row["flops_per_s"],
        }
        for p in profiles
        for row in counter_rows(p)
    ]
    counted = any(p["intensity"] for p in points)
    if not counted:
        points = [
            {
                "part": x.group,
                "phase": x.phase,
                "label": x.size.label,
                "intensity": x.flops / x.bytes if x.flops and x.bytes else None,
                "flops_per_s": x.flops_per_s,
            }
            for x in lines
            if x.group in (ATTENTION, GEMM)
        ]
    flops_per_s, bytes_per_s = peaks(hardware, dtype)
    how = "hardware counters" if counted else "FLOPs and bytes by formula, time measured"
    return charts.roofline(points, flops_per_s, bytes_per_s, title, how)


def cache_hits(profiles: Sequence[Profile], title: str) -> Any:
    """Fig. 7: L1 and L2 hit rates of attention kernels."""
    rows = [
        {**charts.size_columns(size), "part": _with_phase(part, row), "value": row[field]}
        for row in attention_table(profiles)
        if (size := _size_of(row))
        for field, part in (("l1_hit_pct", "L1/TEX"), ("l2_hit_pct", "L2"))
        if row[field] is not None
    ]
    return charts.grouped_bars(rows, _sizes(profiles), "hit rate (%)", title)


def stalls(profiles: Sequence[Profile], title: str) -> Any:
    """Fig. 8: stall reasons and achieved occupancy of attention kernels."""
    rows = []
    for row in attention_table(profiles):
        size = _size_of(row)
        if size is None:
            continue
        parts = list(row["stalls_pct"].items())[:MOST_STALLS]
        if row["occupancy_pct"] is not None:
            parts.append(("achieved occupancy", row["occupancy_pct"]))
        columns = charts.size_columns(size)
        rows += [{**columns, "part": _with_phase(n, row), "value": v} for n, v in parts]
    title_y = "stalled cycles, occupancy (%)"
    return charts.grouped_bars(rows, _sizes(profiles), title_y, title)


def attention_share(lines: Sequence[Line], title: str) -> Any:
    """Attention's share of decode steps against the active context."""
    rows = [
        {**charts.size_columns(x.size), "share": x.measured_share}
        for x in lines
        if x.phase == DECODE and x.group == ATTENTION
    ]
    return charts.against_context(rows, "share", "share of decode time", title, percent=True)


def attention_bandwidth(lines: Sequence[Line], title: str, hardware: Hardware | None) -> Any:
    """Attention's bytes by formula over its measured time, against the active context."""
    rows = [
        {**charts.size_columns(x.size), **line_columns(x)}
        for x in lines
        if x.phase == DECODE and x.group == ATTENTION
    ]
    peak = hardware.memory_bandwidth_bytes_per_s if hardware else None
    return charts.against_context(
        rows,
        "bytes_per_s",
        "bytes by formula / measured time (B/s)",
        f"{title}: attention's bandwidth in decode",
        limit=peak,
        limit_label=f"bandwidth of {hardware.name}" if hardware else "",
    )


def _sizes(profiles: Sequence[Profile]) -> list[Size]:
    found = [size for p in profiles for size, _ in p.parts if size]
    found += [size for p in profiles for size in _launch_sizes(p)]
    return list(dict.fromkeys(found + [p.size for p in profiles if p.size]))


def _launch_sizes(profile: Profile) -> list[Size]:
    sizes = dict.fromkeys(profile.part_of_launch(x)[0] for x in profile.launches)
    return [size for size in sizes if size]


def _size_of_samples(profile: Profile) -> Size | None:
    """The batch that samples over the whole file are of: the user's, or the only one marked."""
    marked = {step.size for step in profile.steps}
    return profile.size or (marked.pop() if len(marked) == 1 else None)


def _size_of(row: Mapping[str, Any]) -> Size | None:
    if not row["batch"]:
        return None
    return Size(row["batch"], row["input_tokens"], row["output_tokens"])


def _with_phase(part: str, row: Mapping[str, Any]) -> str:
    """Decode is what these figures are of; other phases are told apart from it."""
    return part if row["phase"] in (None, DECODE) else f"{part}, {row['phase']}"
