"""The capture of ``servefit characterise --engine vllm-offline``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from servefit.characterise.capture import Profiler
    from servefit.characterise.run import Size

#: The option of the command that nsys or ncu runs.
STARTED = "--under-profiler"


def capture_traces(
    sizes: Sequence[Size],
    *,
    model: str,
    gpu: str | None,
    arguments: Mapping[str, Any],
    settings: Sequence[tuple[str, str]],
    folder: str,
    profiler: Profiler,
    last_steps: int,
    max_point_s: float,
    dry_run: bool,
    started: bool,
) -> list[Path]:
    """Run the batches under a profiler; the traces written (none under nsys, ncu, or dry).

    ``started`` says that nsys or ncu runs this process already; else it is started here.

    Raises:
        ServefitError: as `servefit.characterise.capture.capture`; vLLM does not start.
    """
    from servefit.characterise.capture import (
        capture,
        check_one_process,
        export_command,
        machine_path,
        measure_machine,
        outer_command,
        start,
        write_description,
    )
    from servefit.offline.campaign import OfflineTarget, load_vllm
    from servefit.profiling.plan import Point

    target = OfflineTarget(model=model, gpu=gpu, arguments=arguments)
    points = [
        Point(
            concurrency=size.batch,
            input_length=str(size.input_tokens),
            output_length=str(size.output_tokens),
            settings=tuple(settings),
        )
        for size in sizes
    ]
    engine_arguments = target.engine_arguments(points)
    check_one_process(engine_arguments)
    inner = [*(argument for argument in sys.argv[1:] if argument != "--dry-run"), STARTED]
    if dry_run:
        for name, value in engine_arguments.items():
            click.echo(f"{name} = {value}", err=True)
        for size in sizes:
            click.echo(size.label, err=True)
        if profiler != "torch":
            click.echo(shlex.join(outer_command(profiler, folder, inner)))
            click.echo(export_command(profiler, folder))
        return []
    if profiler != "torch" and not started:
        start(profiler, folder, inner)
        click.echo(f"export the report by: {export_command(profiler, folder)}", err=True)
        return []
    write_description(folder, model, {}, sizes)
    engine = load_vllm(target, engine_arguments)
    machine = measure_machine(folder)
    if machine is not None:
        click.echo(f"measured {machine.name}: {machine_path(folder)}", err=True)
    write_description(folder, model, engine.settings, sizes)
    return capture(
        engine,
        sizes,
        folder,
        profiler=profiler,
        last_steps=last_steps,
        max_batch_s=max_point_s,
        report=lambda text: click.echo(text, err=True),
    )
