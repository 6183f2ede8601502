"""``servefit hardware``: the catalogue, one accelerator with its sources, or this machine's CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from servefit.cli.common import echo_json, json_option, print_table, write_text
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.hardware import Hardware


@click.command(
    epilog="Examples: `servefit hardware H100`; `servefit hardware --file mine.toml MyGPU`; "
    "`servefit hardware 'name=MyGPU,flops=312T,bandwidth=1.5TB/s,memory=40GB' --json`; "
    "`servefit hardware --measure -o cpu.toml`."
)
@click.argument("name", required=False)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="TOML",
    help="Accelerators of your own, in the form of the built-in catalogue. Repeatable.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Measure this machine's CPU: float32 FLOP/s by a matrix product, bandwidth by a copy.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Cores to measure. Default: half of the CPUs, as hardware threads share a core.",
)
@click.option("-o", "--output", metavar="TOML", help="Write it to a file that --file reads.")
@json_option
def command(
    name: str | None,
    files: tuple[str, ...],
    measure: bool,
    threads: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    """List accelerators, or show one with the source of each number, or measure this CPU.

    NAME is a catalogue name, one as drivers print it ("NVIDIA A100-SXM4-80GB"), or a description
    name=...,flops=...,bandwidth=...,memory=... of your own.
    """
    if measure and (name or files):
        raise ServefitError("--measure is of this machine's CPU: give no NAME and no --file")
    if threads is not None and not measure:
        raise ServefitError("--threads goes with --measure")
    if not measure and output is not None and name is None:
        raise ServefitError("-o writes one accelerator: give its NAME, or --measure")
    if measure:
        from servefit.hardware.measure import measure_cpu

        _answer(measure_cpu(threads), output, as_json)
        return
    from servefit.hardware import (
        catalogue,
        get_hardware,
        load_hardware_file,
    )

    if name is None:
        known = [hardware for file in files for hardware in load_hardware_file(file)]
        known += catalogue()
        if as_json:
            echo_json([describe(hardware) for hardware in known])
        else:
            _list(known)
        return
    hardware = get_hardware(name, files)
    _answer(hardware, output, as_json)


def _answer(hardware: Hardware, output: str | None, as_json: bool) -> None:
    """Show it, and write it to a file if asked."""
    if output is not None:
        from servefit.hardware.files import hardware_toml

        write_text(output, hardware_toml(hardware))
    if output == "-":
        return
    if as_json:
        echo_json(describe(hardware))
    else:
        _show(hardware)


def describe(hardware: Hardware) -> dict[str, Any]:
    """An accelerator for JSON, in SI units; unknown is null."""
    from dataclasses import asdict

    return {**asdict(hardware), "ridge_flops_per_byte": _ridge(hardware)}


def _list(known: list[Hardware]) -> None:
    print_table(
        ["accelerator", "16-bit", "fp8", "int8", "fp4", "bandwidth", "memory", "link", "ridge"],
        [
            (
                hardware.name,
                *(
                    _flops(hardware.peak_flops_per_s.get(dtype))
                    for dtype in ("bfloat16", "fp8", "int8", "fp4")
                ),
                _per_second(hardware.memory_bandwidth_bytes_per_s),
                _bytes(hardware.memory_bytes),
                _per_second(hardware.link_bandwidth_bytes_per_s),
                _number(_ridge(hardware)),
            )
            for hardware in known
        ],
        left=("accelerator",),
    )
    click.echo(
        "Dense TFLOP/s; link: one direction to all peers; ridge: FLOPs a byte in 16 bits, above "
        "which a kernel is compute-bound.\n`servefit hardware NAME` tells the sources."
    )


def _show(hardware: Hardware) -> None:
    sources = hardware.sources
    peaks = sources.get("peak_flops_per_s", "")
    rows = [
        (f"{dtype} peak", f"{_flops(rate)} TFLOP/s", peaks)
        for dtype, rate in hardware.peak_flops_per_s.items()
    ]
    for label, key, shown in (
        ("memory bandwidth", "memory_bandwidth_bytes_per_s", _per_second),
        ("memory", "memory_bytes", _bytes),
        ("link bandwidth", "link_bandwidth_bytes_per_s", _per_second),
    ):
        rows.append((label, shown(getattr(hardware, key)), sources.get(key, "")))
    rows.append(("ridge (16-bit)", f"{_number(_ridge(hardware))} FLOP/byte", "peak / bandwidth"))
    print_table(["figure", "value", "source"], rows, title=hardware.name, left=("figure", "source"))
    if hardware.notes:
        click.echo(hardware.notes)


def _ridge(hardware: Hardware) -> float | None:
    """16-bit FLOP/s over bytes/s, the arithmetic intensity where both limits meet."""
    peak, bandwidth = hardware.peak_flops("bfloat16"), hardware.memory_bandwidth_bytes_per_s
    return None if peak is None or bandwidth is None else peak / bandwidth


def _flops(rate: float | None) -> str:
    return _number(None if rate is None else rate / 1e12)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _per_second(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate / 1e12:.4g} TB/s" if rate >= 1e12 else f"{rate / 1e9:.4g} GB/s"


def _bytes(size: float | None) -> str:
    from servefit.units import format_bytes

    return format_bytes(size)
