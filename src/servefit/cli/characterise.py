"""``servefit characterise``: profilers' files, beside the formula and a calibration."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.params import NUMBERS
from servefit.cli.roofline import import_charts, whole
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.characterise.compare import Line
    from servefit.characterise.profile import Profile
    from servefit.characterise.run import Size
    from servefit.hardware import Hardware
    from servefit.models import ModelShape

VLLM_OFFLINE = "vllm-offline"
_PART = re.compile(r"(?P<size>\d+,\d+,\d+)(?:,(?P<phase>prefill|decode))?", re.ASCII)


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE[@B,IL,OL[,PHASE]]]...")
@click.option(
    "--at",
    metavar="B,IL,OL[,PHASE]",
    help="Batch, lengths and phase of files that do not say it.",
)
@click.option("--model", help="Name or config.json path: for formulas; with --engine its folder.")
@click.option(
    "--gpu", metavar="NAME", help="What it ran on: the roofline. See `servefit hardware`."
)
@click.option("--hardware-file", multiple=True, metavar="TOML", help="Accelerators of your own.")
@click.option(
    "--calibration", metavar="FILE", help="A step law's, or prior:step: its terms beside."
)
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--dtype", help="Number format of the weights. Default: the model's.")
@click.option("--kv-cache-dtype", help="Number format of the KV cache. Default: as the weights.")
@click.option(
    "--kernel-table", multiple=True, metavar="TOML", help="Rules of your own, before the built-in."
)
@click.option(
    "--quietest",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Use only this share of each batch's steps over all files, the fastest: for machines "
    "that others use too.",
)
@click.option("--figures", "figures_dir", metavar="FOLDER", help="Write the figures there.")
@click.option(
    "--steps",
    "steps_file",
    metavar="FILE",
    help="Write the marked steps as a table of engine steps, for `servefit fit --law step`.",
)
@click.option(
    "--format",
    "suffix",
    type=click.Choice(["png", "svg", "html"]),
    default="png",
    show_default=True,
    help="Of the figures.",
)
@click.option("--engine", type=click.Choice([VLLM_OFFLINE]), help="Capture first, in this Python.")
@click.option("--batch", type=NUMBERS, help="Capture: requests at once.")
@click.option("--input-tokens", type=NUMBERS, help="Capture: prompt length.")
@click.option("--output-tokens", type=NUMBERS, help="Capture: answer length.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="vLLM's arguments.")
@click.option(
    "--profiler",
    type=click.Choice(["torch", "nsys", "ncu"]),
    default="torch",
    show_default=True,
    help="torch writes traces by itself; nsys and ncu are started around this command.",
)
@click.option("--under-profiler", is_flag=True, hidden=True)
@click.option(
    "--last-steps",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Decode steps at the end that ncu records.",
)
@click.option(
    "-o", "--output", default="characterisation", show_default=True, help="Traces' folder."
)
@click.option(
    "--max-point-time",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    help="Seconds that one batch may take.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be captured, and nsys's command.")
@common.json_option
def command(
    files: tuple[str, ...],
    model: str | None,
    gpu: str | None,
    hardware_file: tuple[str, ...],
    engine: str | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show where time goes in profiled batches, and hold it against the formula.

    FILEs are Nsight Compute CSV (`ncu --csv`, details or raw page), Nsight Systems
    cuda_gpu_kern_sum CSV or sqlite exports, and PyTorch profiler traces (.json, .json.gz).
    Steps that servefit marks say what batch they are of; say it for other files by appending
    @BATCH,INPUT,OUTPUT and ,prefill or ,decode, or by --at.

    With --model, FLOPs and bytes by formula stand beside the measured times; with --gpu their
    least time; with --calibration the terms of a calibrated step law. With --engine vllm-offline,
    the batches are run first, under a profiler.

    \b
    Examples:
      servefit characterise decode.csv@16,256,128,decode --model mistralai/Mistral-7B-v0.1
      servefit characterise --engine vllm-offline --model ./opt-125m --dtype float32 \\
          --batch 1,4,16,64 --input-tokens 32,224,480 --output-tokens 32
      servefit characterise characterisation/*.json.gz --model ./opt-125m --gpu H100 \\
          --calibration fit.json --figures figures
    """
    paths = list(files)
    if engine is not None:
        paths += map(str, _capture(model, gpu, options, dry_run=dry_run))
        if dry_run or options["profiler"] != "torch":
            return
    elif dry_run:
        raise ServefitError(f"--dry-run: is of a capture: give --engine {VLLM_OFFLINE}")
    if not paths:
        raise ServefitError(
            f"nothing to characterise: give profilers' files, or --engine {VLLM_OFFLINE}"
        )
    from servefit.characterise.compare import lines_of
    from servefit.characterise.report import document

    profiles = _read(paths, options["at"], options["kernel_table"], options["quietest"])
    shape = _shape(model, options)
    hardware = _hardware(gpu, hardware_file, options["output"] if engine else None)
    calibration = None
    if options["calibration"]:
        from servefit.api import as_calibration

        calibration = as_calibration(options["calibration"])
    lines = lines_of(profiles, shape, hardware, calibration, options["tensor_parallel_size"])
    if options["steps_file"]:
        _write_steps(profiles, shape, {**options, "model": model, "gpu": gpu})
    if options["figures_dir"]:
        _draw(profiles, lines, shape, hardware, options["figures_dir"], options["suffix"])
    if as_json:
        common.echo_json(document(profiles, lines))
    else:
        from servefit.cli.characterise_text import report

        report(profiles, lines)


def _hardware(name: str | None, files: Sequence[str], captured: str | None) -> Hardware | None:
    """The accelerator named; else the only one of the files, or the CPU that a capture measured."""
    from servefit.hardware import get_hardware, load_hardware_file

    if name is not None:
        return get_hardware(name, files)
    if captured is not None and not files:
        from servefit.characterise.capture import machine_path

        path = machine_path(captured)
        files = [str(path)] if path.exists() else []
    known = [hardware for file in files for hardware in load_hardware_file(file)]
    if len(known) > 1:
        raise ServefitError("--hardware-file: holds several accelerators: say which by --gpu")
    return known[0] if known else None


def _capture(
    model: str | None, gpu: str | None, options: Mapping[str, Any], *, dry_run: bool
) -> list[Path]:
    from servefit.characterise.run import grid
    from servefit.cli.characterise_capture import capture_traces

    names = ("batch", "input_tokens", "output_tokens")
    missing = [n for n, v in (("model", model), *((n, options[n]) for n in names)) if not v]
    if missing or model is None:
        raise ServefitError(f"--engine: needs --{missing[0].replace('_', '-')}")
    axes = [whole(options[name], name.replace("_", "-")) for name in names]
    settings = [tuple(text.split("=", 1)) for text in options["settings"]]
    wrong = [text for text in options["settings"] if "=" not in text]
    if wrong:
        raise ServefitError(f"--set {wrong[0]}: expected NAME=VALUE")
    given = {
        "dtype": options["dtype"],
        "kv_cache_dtype": options["kv_cache_dtype"],
        "tensor_parallel_size": options["tensor_parallel_size"],
    }
    return capture_traces(
        grid(*axes),
        model=model,
        gpu=gpu,
        arguments={name: value for name, value in given.items() if value is not None},
        settings=[(name, value) for name, value in settings],
        folder=options["output"],
        profiler=options["profiler"],
        last_steps=options["last_steps"],
        max_point_s=options["max_point_time"],
        dry_run=dry_run,
        started=options["under_profiler"],
    )


def _read(
    paths: Sequence[str], at: str | None, tables: Sequence[str], share: float | None
) -> list[Profile]:
    from servefit.characterise.classify import load_kernel_table
    from servefit.characterise.profile import quietest
    from servefit.characterise.readers import read_profile

    table = load_kernel_table(tables)
    profiles = []
    for text in paths:
        file, size, phase = _split(text, at)
        profiles.append(replace(read_profile(file, table), size=size, phase=phase))
    return profiles if share is None else quietest(profiles, share)


def _split(text: str, at: str | None) -> tuple[str, Size | None, str | None]:
    """File, batch and phase of an argument; a file of that very name comes first."""
    file, sign, appended = text.rpartition("@")
    if not sign or Path(text).exists():
        return text, *(_part(at) if at else (None, None))
    return file, *_part(appended)


def _part(text: str) -> tuple[Size, str | None]:
    """A batch and a phase, as ``4,256,256`` or ``4,256,256,decode``."""
    from servefit.characterise.run import Size

    match = _PART.fullmatch(text)
    if match is None:
        raise ServefitError(
            f"{text!r}: expected BATCH,INPUT,OUTPUT or BATCH,INPUT,OUTPUT,PHASE with the phase "
            "prefill or decode, as 16,256,128,decode"
        )
    return Size(*(int(n) for n in match["size"].split(","))), match["phase"]


def _shape(model: str | None, options: Mapping[str, Any]) -> ModelShape | None:
    if model is None:
        return None
    from servefit.models import get_model

    kv_cache_dtype = options["kv_cache_dtype"] or options["dtype"]
    return get_model(model).with_dtypes(options["dtype"], kv_cache_dtype)


def _write_steps(
    profiles: Sequence[Profile], shape: ModelShape | None, options: Mapping[str, Any]
) -> None:
    import json

    from servefit.characterise.report import step_rows

    if shape is None:
        raise ServefitError("--steps: the table names a model: give --model")
    about = {
        "model": options["model"],
        "gpu": options["gpu"],
        "tensor_parallel_size": options["tensor_parallel_size"],
        "dtype": shape.weight_dtype,
        "kv_cache_dtype": shape.kv_cache_dtype,
    }
    rows = step_rows(profiles, about)
    if not rows:
        raise ServefitError("--steps: no step is marked in these files")
    common.write_text(options["steps_file"], "".join(json.dumps(row) + "\n" for row in rows))


def _draw(
    profiles: Sequence[Profile],
    lines: Sequence[Line],
    shape: ModelShape | None,
    hardware: Hardware | None,
    folder: str,
    suffix: str,
) -> None:
    import_charts()
    from servefit.characterise.figures import figures
    from servefit.figures import save

    title = shape.name if shape else "profile"
    dtype = shape.weight_dtype if shape else "bfloat16"
    names = []
    for name, chart in figures(profiles, lines, title, hardware, dtype):
        save(chart, Path(folder) / f"{name}.{suffix}")
        names.append(name)
    drawn = ", ".join(names) or "none: the files hold nothing to draw"
    click.echo(f"figures in {folder}: {drawn}", err=True)
