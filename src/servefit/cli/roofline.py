"""``servefit roofline``: where time, bandwidth and compute go, from first principles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.params import NUMBERS
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.characterise.run import PhaseWork, Run, Size
    from servefit.hardware import Hardware

FIGURES = ("roofline", "shares", "phases", "utilisation", "context")
#: A table of every class is printed up to so many batches.
MOST_DETAILED = 3
#: Decode steps that are listed or drawn.
MOST_STEPS = 40


@click.command()
@click.option("--model", required=True, help="Name or config.json path, see `servefit models`.")
@click.option(
    "--gpu",
    required=True,
    metavar="NAME",
    help="Catalogue name (`servefit hardware`), or name=...,flops=...,bandwidth=...",
)
@click.option("--hardware-file", multiple=True, metavar="TOML", help="Accelerators of your own.")
@click.option("--batch", type=NUMBERS, required=True, help="Requests at once: 1,8,64 or 1..8.")
@click.option("--input-tokens", type=NUMBERS, required=True, help="Prompt length: 256,2048.")
@click.option("--output-tokens", type=NUMBERS, required=True, help="Answer length: 256.")
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--dtype", help="Number format of the weights. Default: the model's.")
@click.option("--kv-cache-dtype", help="Number format of the KV cache. Default: as the weights.")
@click.option("--plot", metavar="FILE", help="Write a figure: .png, .svg or .html.")
@click.option(
    "--figure",
    type=click.Choice(FIGURES),
    default="roofline",
    show_default=True,
    help="What --plot draws: kernels under the roofline; shares of decode time by kernel class; "
    "prefill and decode seconds; shares of peak bandwidth and FLOP/s; attention's share of each "
    "decode step as the active context grows.",
)
@common.json_option
def command(
    model: str,
    gpu: str,
    hardware_file: tuple[str, ...],
    batch: list[float],
    input_tokens: list[float],
    output_tokens: list[float],
    tensor_parallel_size: int,
    dtype: str | None,
    kv_cache_dtype: str | None,
    plot: str | None,
    figure: str,
    as_json: bool,
) -> None:
    """Show where time, bandwidth and compute go in prefill and decode, by formula.

    A static batch is prefilled in one step and decodes a token a step. FLOPs, bytes and arithmetic
    intensity of each kernel class are put on the accelerator's roofline; every kernel takes
    max(FLOPs / peak, bytes / bandwidth), one after another. That is the time of an engine that
    wastes nothing and fuses nothing: `servefit characterise` sets measured times beside it,
    `servefit predict` has calibrated ones.

    \b
    Examples:
      servefit roofline --model mistralai/Mistral-7B-v0.1 --gpu H100-64GB \\
          --batch 4,34,258 --input-tokens 256 --output-tokens 256
      servefit roofline --model mistralai/Mistral-7B-v0.1 --gpu H100-64GB --batch 16 \\
          --input-tokens 256,2048,16384 --output-tokens 128 --plot shares.png --figure shares
    """
    from servefit.characterise.run import grid, run
    from servefit.hardware import get_hardware
    from servefit.models import get_model

    shape = get_model(model).with_dtypes(dtype, kv_cache_dtype or dtype)
    hardware = get_hardware(gpu, hardware_file)
    sizes = grid(
        whole(batch, "batch"),
        whole(input_tokens, "input-tokens"),
        whole(output_tokens, "output-tokens"),
    )
    runs = [run(shape, hardware, size, tensor_parallel_size) for size in sizes]
    if plot:
        _plot(runs, hardware, f"{shape.name} on {hardware.name}, by formula", figure, plot)
    if as_json:
        common.echo_json(
            {
                "model": shape.name,
                "gpu": hardware.name,
                "tensor_parallel_size": tensor_parallel_size,
                "weight_dtype": shape.weight_dtype,
                "kv_cache_dtype": shape.kv_cache_dtype,
                "peak_flops_per_s": runs[0].prefill.flops_per_s,
                "memory_bandwidth_bytes_per_s": runs[0].prefill.bytes_per_s,
                "batches": [_document(r) for r in runs],
            }
        )
        return
    _report(runs, f"{shape.name} on {hardware.name}")


def whole(values: Sequence[float], option: str) -> list[int]:
    """Integers of at least 1; raises `ServefitError`."""
    for value in values:
        if value != int(value):
            raise ServefitError(f"--{option} {value:g}: must be a whole number")
    return [int(value) for value in values]


def _document(run: Run) -> dict[str, Any]:
    size = run.size
    return {
        "batch": size.batch,
        "input_tokens": size.input_tokens,
        "output_tokens": size.output_tokens,
        "active_context_tokens": {
            "first_step": run.active_context_tokens[0] if size.output_tokens > 1 else None,
            "final_step": size.active_context_tokens,
        },
        "steps": _over_steps(run),
        "prefill": _phase(run.prefill),
        "decode": _phase(run.decode),
        "final_step": _phase(run.decode, last=True),
    }


def _over_steps(run: Run) -> dict[str, Any]:
    """Decode step by step, as the context grows; of long answers an even sample of the steps."""
    import numpy as np

    count = len(run.active_context_tokens)
    at = np.unique(np.linspace(0, count - 1, min(count, MOST_STEPS)).round().astype(int))
    return {
        "active_context_tokens": run.active_context_tokens[at],
        "seconds": run.decode.step_seconds[at],
        "attention_share": run.decode.share("attention decode")[at],
    }


def _phase(work: PhaseWork, *, last: bool = False) -> dict[str, Any] | None:
    """Sums over a phase, or its last step alone; ``None`` where it has no step."""
    if not work.step_seconds.size:
        return None
    of = slice(-1, None) if last else slice(None)
    whole_s = float(work.step_seconds[of].sum())
    classes = {}
    for name, w in work.work.items():
        flops, moved = float(w.flops[of].sum()), float(w.bytes[of].sum())
        if not (flops or moved):
            continue
        seconds = float(work.seconds[name][of].sum())
        classes[name] = {
            "flops": flops,
            "bytes": moved,
            "intensity_flops_per_byte": flops / moved if moved else None,
            "bound_by": "compute"
            if flops / work.flops_per_s > moved / work.bytes_per_s
            else "bandwidth",
            "seconds": seconds,
            "share": seconds / whole_s,
        }
    bandwidth, compute = work.bandwidth_share[of], work.flops_share[of]
    weights = work.step_seconds[of]
    return {
        "seconds": whole_s,
        "steps": len(weights),
        "bandwidth_share": float((bandwidth * weights).sum() / whole_s),
        "flops_share": float((compute * weights).sum() / whole_s),
        "bandwidth_share_peak": float(bandwidth.max()),
        "flops_share_peak": float(compute.max()),
        "classes": classes,
    }


def _report(runs: Sequence[Run], title: str) -> None:
    from servefit.units import format_duration

    documents = [_document(r) for r in runs]
    rows = []
    for run, document in zip(runs, documents, strict=True):
        decode, last = document["decode"], document["final_step"]
        attention = (last or {}).get("classes", {}).get("attention decode", {})
        rows.append(
            (
                run.size.batch,
                run.size.input_tokens,
                run.size.output_tokens,
                f"{run.size.active_context_tokens:,}",
                format_duration(run.prefill_s),
                format_duration(run.decode_s) if decode else "-",
                _percent(decode and decode["bandwidth_share"]),
                _percent(decode and decode["flops_share"]),
                _percent(attention.get("share")),
                f"{attention['intensity_flops_per_byte']:.2f}" if attention else "-",
            )
        )
    common.print_table(
        (
            *("batch", "input", "output", "active context", "prefill", "decode", "bandwidth"),
            *("FLOP/s", "attention, last step", "FLOPs/byte"),
        ),
        rows,
        title=f"{title}: at the roofline, by formula",
    )
    click.echo(
        "Active context: at the final step, batch x (input + output). Bandwidth and FLOP/s: shares "
        "of the peaks, mean over decode."
    )
    if len(runs) > MOST_DETAILED:
        click.echo(f"Kernel classes: --json, or at most {MOST_DETAILED} batches.")
        return
    for run, document in zip(runs, documents, strict=True):
        for phase, label in (("prefill", "prefill"), ("final_step", "final decode step")):
            if document[phase]:
                _print_classes(document[phase], f"{run.size.label}: {label}")


def _print_classes(phase: Mapping[str, Any], title: str) -> None:
    from servefit.units import format_bytes, format_duration

    common.print_table(
        ("kernel class", "FLOPs", "bytes", "FLOPs/byte", "bound by", "time", "share"),
        [
            (
                name,
                f"{c['flops'] / 1e9:,.4g} G",
                format_bytes(c["bytes"]),
                f"{c['intensity_flops_per_byte']:,.2f}",
                c["bound_by"],
                format_duration(c["seconds"]),
                _percent(c["share"]),
            )
            for name, c in phase["classes"].items()
        ],
        title=title,
        left=("kernel class", "bound by"),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _plot(runs: Sequence[Run], hardware: Hardware, title: str, figure: str, path: str) -> None:
    """Draw one figure; raises `ServefitError` where Altair is missing."""
    chart = _chart(runs, title, figure)
    if chart is None:
        raise ServefitError(f"--figure {figure}: nothing to draw: decode needs 2 output tokens")
    from servefit.figures import save

    save(chart, path)


def _chart(runs: Sequence[Run], title: str, figure: str) -> Any:
    charts = import_charts()
    sizes: list[Size] = [r.size for r in runs]
    decoding = [r for r in runs if r.size.output_tokens > 1]
    columns = {r.size: charts.size_columns(r.size) for r in runs}
    if figure == "phases":
        rows = [
            {**columns[r.size], "part": part, "seconds": seconds}
            for r in runs
            for part, seconds in (("prefill", r.prefill_s), ("decode", r.decode_s))
        ]
        return charts.stacked_seconds(rows, sizes, title)
    if figure == "shares":
        rows = [
            {**columns[r.size], "part": name, "share": share}
            for r in decoding
            for name, share in r.decode.mean_shares.items()
            if share
        ]
        return charts.stacked_shares(rows, sizes, title)
    if figure == "utilisation":
        rows = [
            {**columns[r.size], "part": part, "mean": 100 * mean, "peak": 100 * peak}
            for r in decoding
            for part, mean, peak in _peaks(_phase(r.decode) or {})
        ]
        return charts.utilisation(rows, sizes, title)
    if figure == "context":
        rows = [
            {**columns[r.size], "active_context_tokens": context, "share": share}
            for r in decoding
            for steps in [_over_steps(r)]
            for context, share in zip(
                steps["active_context_tokens"].tolist(),
                steps["attention_share"].tolist(),
                strict=True,
            )
        ]
        y_title = "attention's share of a decode step"
        return charts.against_context(rows, "share", y_title, title, percent=True, lines="label")
    points = [
        {
            "part": name,
            "phase": phase,
            "label": r.size.label,
            "intensity": float(w.intensity[-1]),
            "flops_per_s": float(w.flops[-1] / work.seconds[name][-1]),
        }
        for r in runs
        for phase, work in (("prefill", r.prefill), ("decode", r.decode))
        if work.step_seconds.size
        for name, w in work.work.items()
        if w.flops[-1] > 0
    ]
    first = runs[0].prefill
    return charts.roofline(
        points,
        first.flops_per_s,
        first.bytes_per_s,
        title,
        "prefill, and the final decode step; kernels at the roof by construction",
    )


def _peaks(phase: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    return [
        ("DRAM bandwidth", phase["bandwidth_share"], phase["bandwidth_share_peak"]),
        ("FLOP/s", phase["flops_share"], phase["flops_share_peak"]),
    ]


def import_charts() -> Any:
    """`servefit.characterise.charts`; raises `ServefitError` where Altair is missing."""
    try:
        from servefit.characterise import charts
    except ImportError:
        raise ServefitError("figures need Altair: pip install 'servefit[plot]'") from None
    return charts
