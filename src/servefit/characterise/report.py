"""What a set of profiles shows, as plain values: for tables, JSON and figures alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from servefit.characterise.classify import ATTENTION, UNCLASSIFIED
from servefit.characterise.compare import Line
from servefit.characterise.profile import DECODE, PREFILL, Launch, Part, Profile, shares
from servefit.offline.steps import StepShape
from servefit.runs.schema import SCHEMA_VERSION

#: Counters of a launch that are percentages, with their titles.
PERCENTAGES = (
    ("dram_pct", "DRAM"),
    ("tensor_pct", "tensor"),
    ("sm_pct", "SM"),
    ("issue_pct", "issue"),
    ("l1_hit_pct", "L1 hits"),
    ("l2_hit_pct", "L2 hits"),
    ("occupancy_pct", "occupancy"),
)
#: Names of unclassified kernels that are shown.
MOST_UNCLASSIFIED = 5


def part_columns(part: Part) -> dict[str, Any]:
    """A batch and phase as columns; ``None`` where unknown."""
    size, phase = part
    return {
        "phase": phase,
        "batch": size.batch if size else None,
        "input_tokens": size.input_tokens if size else None,
        "output_tokens": size.output_tokens if size else None,
        "active_context_tokens": size.active_context_tokens if size else None,
    }


def class_rows(profile: Profile) -> list[dict[str, Any]]:
    """Calls, seconds and share by kernel class, for each batch and phase of a profile."""
    rows = []
    for part in profile.parts:
        times = profile.seconds_by_class(part)
        for name, share in shares(times).items():
            mine = [
                k for k in profile.kernels if k.kernel_class == name and profile.part_of(k) == part
            ]
            rows.append(
                {
                    **part_columns(part),
                    "kernel_class": name,
                    "calls": sum(k.calls for k in mine) if mine else None,
                    "steps": len(profile.steps_of(part)) or None,
                    "seconds": times[name],
                    "share": share,
                }
            )
    return rows


def step_rows(profiles: Iterable[Profile], about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Marked steps as rows of a table of engine steps, which a law is fitted on.

    Args:
        profiles: with marked steps; mixed ones are left out, as a mark does not tell their shape.
        about: columns of every row: model, dtype, and the like.
    """
    rows = []
    for step in (step for profile in profiles for step in profile.steps):
        size = step.size
        if size is None:
            continue
        if step.phase == PREFILL:
            shape = StepShape(
                prefill_tokens=size.batch * size.input_tokens, prefill_requests=size.batch
            )
        elif step.phase == DECODE and step.token is not None:
            # The newest token is an input of this step and not yet in the cache.
            cached = size.input_tokens + step.token - 2
            shape = StepShape(decode_requests=size.batch, decode_context_tokens=size.batch * cached)
        else:
            continue
        row = {"schema_version": SCHEMA_VERSION, **about, "segment": "sweep"}
        rows.append({**row, "step_time_s": step.wall_s, **shape.as_row(), "n": 1})
    return rows


def unclassified_names(profile: Profile) -> list[tuple[str, float]]:
    """The longest unclassified kernels and their seconds."""
    sums: dict[str, float] = {}
    for k in profile.kernels:
        if k.kernel_class == UNCLASSIFIED:
            sums[k.name] = sums.get(k.name, 0.0) + k.total_s
    return sorted(sums.items(), key=lambda item: -item[1])[:MOST_UNCLASSIFIED]


def counter_rows(profile: Profile) -> list[dict[str, Any]]:
    """Hardware counters by batch, phase and kernel class: means weighted by duration, and peaks.

    FLOP/s and intensity are those of all launches together: sums of FLOPs over sums of seconds and
    bytes, of launches that have them.
    """
    groups: dict[tuple[Part, str], list[Launch]] = {}
    for launch in profile.launches:
        key = profile.part_of_launch(launch), launch.kernel_class
        groups.setdefault(key, []).append(launch)
    rows = []
    for (part, name), mine in groups.items():
        counted = [x for x in mine if x.flops is not None and x.dram_bytes and x.duration_s]
        flops = math.fsum(x.flops or 0.0 for x in counted)
        moved = math.fsum(x.dram_bytes or 0.0 for x in counted)
        seconds = math.fsum(x.duration_s or 0.0 for x in counted)
        row = {
            **part_columns(part),
            "kernel_class": name,
            "launches": len(mine),
            "seconds": _sum(x.duration_s for x in mine),
            "dram_bytes": _sum(x.dram_bytes for x in mine),
            "flops": flops if counted else None,
            "flops_per_s": flops / seconds if counted else None,
            "intensity_flops_per_byte": flops / moved if counted else None,
            "stalls_pct": _mean_stalls(mine),
        }
        for field, _ in PERCENTAGES:
            values = [(getattr(x, field), x.duration_s or 1.0) for x in mine]
            known = [(v, w) for v, w in values if v is not None]
            row[field] = _weighted(known)
            row[f"{field}_peak"] = max(v for v, _ in known) if known else None
        rows.append(row)
    return rows


def attention_table(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """Table I: attention kernels of each batch, where launches were counted and the batch known.

    Active context, arithmetic intensity, FLOP/s and achieved share of DRAM bandwidth.
    """
    rows = [row for p in profiles for row in counter_rows(p)]
    return [row for row in rows if row["batch"] and row["kernel_class"] == ATTENTION]


def document(profiles: Sequence[Profile], lines: Sequence[Line]) -> dict[str, Any]:
    """Everything, for JSON; SI units, unknown is ``None``."""
    return {
        "files": [
            {
                "file": p.source,
                "tool": p.tool,
                "classes": class_rows(p),
                "unclassified": [{"kernel": n, "seconds": s} for n, s in unclassified_names(p)],
                "counters": counter_rows(p),
                "metrics": [
                    {"name": m.name, "mean_pct": m.mean_pct, "peak_pct": m.peak_pct}
                    for m in p.metrics
                ],
            }
            for p in profiles
        ],
        "attention": attention_table(profiles),
        "measured_and_predicted": [line_columns(line) for line in lines],
    }


def line_columns(line: Line) -> dict[str, Any]:
    """A line of the table that holds measured and predicted together."""
    return {
        **part_columns((line.size, line.phase)),
        "group": line.group,
        "measured_s": line.measured_s,
        "measured_share": line.measured_share,
        "flops": line.flops,
        "bytes": line.bytes,
        "bytes_per_s": line.bytes_per_s,
        "flops_per_s": line.flops_per_s,
        "roofline_s": line.roofline_s,
        "law_s": line.law_s,
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) if known else None


def _weighted(values: Sequence[tuple[float, float]]) -> float | None:
    whole = math.fsum(w for _, w in values)
    return math.fsum(v * w for v, w in values) / whole if whole > 0 else None


def _mean_stalls(launches: Sequence[Launch]) -> dict[str, float]:
    """Mean share by reason, weighted by duration, largest first."""
    weighted = [(x.stalls_pct, x.duration_s or 1.0) for x in launches if x.stalls_pct]
    reasons = dict.fromkeys(reason for stalls, _ in weighted for reason in stalls)
    means = {r: _weighted([(stalls.get(r, 0.0), w) for stalls, w in weighted]) for r in reasons}
    known = {reason: mean for reason, mean in means.items() if mean is not None}
    return dict(sorted(known.items(), key=lambda item: -item[1]))
