"""The tables of ``servefit characterise``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.units import format_bytes, format_duration

if TYPE_CHECKING:
    from servefit.characterise.compare import Line
    from servefit.characterise.profile import Profile

#: Files whose classes are printed one by one; more are only held together.
MOST_FILES = 4


def report(profiles: Sequence[Profile], lines: Sequence[Line]) -> None:
    """Print classes, counters and sampled metrics of each file, and all batches held together."""
    from servefit.characterise.profile import MIXED
    from servefit.characterise.report import attention_table

    for profile in profiles if len(profiles) <= MOST_FILES else ():
        _classes(profile)
    for profile in profiles:
        _unclassified(profile)
        _counters(profile)
        _metrics(profile)
    _table_1(attention_table(profiles))
    mixed = sum(step.phase == MIXED for profile in profiles for step in profile.steps)
    if mixed:
        click.echo(
            f"{mixed} steps mix prompts and decodes and are not held against the formula: raise "
            "--set max_num_batched_tokens=... to prefill a batch in one step."
        )
    if lines:
        _held_together(lines)
    elif any(p.kernels for p in profiles):
        click.echo(
            "No file says what batch and phase it is of: give --at BATCH,INPUT,OUTPUT,decode to "
            "hold it against the formula."
        )


def _classes(profile: Profile) -> None:
    from servefit.characterise.report import class_rows

    rows = class_rows(profile)
    if rows:
        common.print_table(
            ("phase", "batch", "input", "output", "kernel class", "calls", "time", "share"),
            [
                (
                    row["phase"] or "-",
                    _or_dash(row["batch"]),
                    _or_dash(row["input_tokens"]),
                    _or_dash(row["output_tokens"]),
                    row["kernel_class"],
                    _or_dash(row["calls"], ","),
                    format_duration(row["seconds"]),
                    f"{row['share']:.1%}",
                )
                for row in rows
            ],
            title=f"{profile.source}: {profile.tool}",
            left=("phase", "kernel class"),
        )


def _unclassified(profile: Profile) -> None:
    from servefit.characterise.report import unclassified_names

    for name, seconds in unclassified_names(profile):
        shown = name if len(name) <= 90 else f"{name[:90]}..."
        click.echo(f"unclassified, {format_duration(seconds)}: {shown}")


def _counters(profile: Profile) -> None:
    from servefit.characterise.report import PERCENTAGES, counter_rows

    rows = counter_rows(profile)
    if not rows:
        return
    marked = any(launch.size for launch in profile.launches)
    common.print_table(
        (
            *(("batch",) if marked else ()),
            *("kernel class", "launches", "time", "DRAM bytes", "FLOPs/byte", "TFLOP/s"),
            *(f"{title} %" for _, title in PERCENTAGES),
        ),
        [
            (
                *((_batch_of(row),) if marked else ()),
                row["kernel_class"],
                row["launches"],
                format_duration(row["seconds"]),
                format_bytes(row["dram_bytes"]),
                _or_dash(row["intensity_flops_per_byte"], ".2f"),
                _tera(row["flops_per_s"]),
                *(_or_dash(row[field], ".1f") for field, _ in PERCENTAGES),
            )
            for row in rows
        ],
        title=f"{profile.source}: {profile.tool}, means weighted by duration",
        left=("batch", "kernel class") if marked else ("kernel class",),
    )
    for row in rows:
        stalls = [f"{r} {v:.0f} %" for r, v in list(row["stalls_pct"].items())[:3]]
        if stalls:
            of = f"{_batch_of(row)}, " if marked else ""
            click.echo(f"{of}{row['kernel_class']} stalls: {', '.join(stalls)}")


def _batch_of(row: Mapping[str, Any]) -> str:
    """``B 4, IL 256, OL 256, decode``; a dash where unknown."""
    if not row["batch"]:
        return "-"
    label = f"B {row['batch']}, IL {row['input_tokens']}, OL {row['output_tokens']}"
    return f"{label}, {row['phase']}" if row["phase"] else label


def _metrics(profile: Profile) -> None:
    if profile.metrics:
        common.print_table(
            ("metric", "mean %", "peak %"),
            [(m.name, f"{m.mean_pct:.1f}", f"{m.peak_pct:.1f}") for m in profile.metrics],
            title=f"{profile.source}: sampled GPU metrics",
            left=("metric",),
        )


def _table_1(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        common.print_table(
            ("batch", "input", "output", "active context", "FLOPs/byte", "TFLOP/s", "DRAM %"),
            [
                (
                    row["batch"],
                    row["input_tokens"],
                    row["output_tokens"],
                    f"{row['active_context_tokens']:,}",
                    _or_dash(row["intensity_flops_per_byte"], ".2f"),
                    _tera(row["flops_per_s"]),
                    _or_dash(row["dram_pct"], ".1f"),
                )
                for row in rows
            ],
            title="attention kernels",
        )


def _held_together(lines: Sequence[Line]) -> None:
    common.print_table(
        (
            *("phase", "batch", "input", "output", "context", "kernels", "measured", "share"),
            *("GFLOP", "bytes", "GB/s", "GFLOP/s", "roofline", "step law"),
        ),
        [
            (
                x.phase,
                x.size.batch,
                x.size.input_tokens,
                x.size.output_tokens,
                f"{x.size.active_context_tokens:,}",
                x.group,
                format_duration(x.measured_s),
                "-" if x.measured_share is None else f"{x.measured_share:.1%}",
                "-" if x.flops is None else f"{x.flops / 1e9:,.3g}",
                format_bytes(x.bytes),
                "-" if x.bytes_per_s is None else f"{x.bytes_per_s / 1e9:,.3g}",
                "-" if x.flops_per_s is None else f"{x.flops_per_s / 1e9:,.3g}",
                format_duration(x.roofline_s),
                format_duration(x.law_s),
            )
            for x in lines
        ],
        title="measured and predicted, a step",
        left=("phase", "kernels"),
    )
    click.echo(
        "FLOPs and bytes by formula; GB/s and GFLOP/s: these over measured time; roofline: their "
        "least time. The step law's compute term, beside GEMM, holds prompts' attention as well."
    )


def _or_dash(value: float | None, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _tera(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:,.2f}"
