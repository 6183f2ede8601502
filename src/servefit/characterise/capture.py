"""Running static batches on an engine in this process, under a profiler.

Each step of a profiled batch runs in a range of `servefit.characterise.marks`. PyTorch's profiler
writes a trace a batch. Nsight's tools watch from outside: they are started with the command of
`outer_command`, and told by the CUDA profiler API when to record; ncu only records the last decode
steps, as it runs each kernel many times.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal

from servefit.characterise.machine import measure_torch_cpu
from servefit.characterise.marks import Mark
from servefit.characterise.profile import DECODE, MIXED, PREFILL
from servefit.characterise.run import Size
from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.hardware.files import hardware_toml
from servefit.offline.engine import Engine, OutOfTimeError

Profiler = Literal["torch", "nsys", "ncu"]
PROFILERS: tuple[Profiler, ...] = ("torch", "nsys", "ncu")
#: Answers of the batch that warms the engine up.
WARMUP_OUTPUT_TOKENS = 3
#: What ncu collects: times, DRAM traffic, tensor pipes, caches, stalls, occupancy, FLOPs.
NCU_SECTIONS = (
    "SpeedOfLight",
    "SpeedOfLight_RooflineChart",
    "MemoryWorkloadAnalysis",
    "ComputeWorkloadAnalysis",
    "WarpStateStats",
    "SchedulerStats",
    "Occupancy",
)


#: Beside them: DRAM traffic, and instructions and tensor operations to count FLOPs by.
NCU_METRICS = (
    "dram__bytes.sum",
    *(
        f"smsp__sass_thread_inst_executed_op_{kind}{op}_pred_on.sum"
        for kind in "fhd"
        for op in ("add", "mul", "fma")
    ),
    *(
        f"sm__ops_path_tensor_src_{kind}_dst_fp32{sparsity}.sum"
        for kind in ("bf16", "fp16", "fp8")
        for sparsity in ("", "_sparsity_off")
    ),
    # Hopper's names have the instruction, and those of FP16 no type of the result.
    *(
        f"sm__ops_path_tensor_op_{types}_sparsity_{sparsity}.sum"
        for types in (
            "hgmma_src_bf16_dst_fp32",
            "hgmma_src_fp16",
            "hmma_src_bf16_dst_fp32",
            "hmma_src_fp16_dst_fp32",
            "hmma_src_fp16_dst_fp16",
        )
        for sparsity in ("off", "on")
    ),
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
)


def mark_of(size: Size, answered: Collection[int]) -> Mark:
    """The step before which the batch's requests have answered so many tokens each."""
    least = min(answered)
    if least > 0:
        return Mark(DECODE, size, least + 1)
    return Mark(PREFILL if max(answered) == 0 else MIXED, size)


def trace_path(folder: str | Path, size: Size) -> Path:
    """Where the trace of a batch goes."""
    name = f"b{size.batch}_i{size.input_tokens}_o{size.output_tokens}.json.gz"
    return Path(folder) / name


def capture(
    engine: Engine,
    sizes: Sequence[Size],
    folder: str | Path,
    *,
    profiler: Profiler = "torch",
    last_steps: int = 1,
    seed: int = 0,
    max_batch_s: float = 600.0,
    report: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Run each batch, the smaller first, and profile it; returns the traces written.

    With CUDA each is run once before, as kernels are chosen and compiled for every size; on a CPU
    only the first is. Under nsys and ncu nothing is written here.

    Raises:
        ServefitError: PyTorch is missing, a batch takes longer than ``max_batch_s``, or a trace
            cannot be written.
    """
    torch = _torch(profiler)
    on_gpu = torch.cuda.is_available()
    written: list[Path] = []
    ordered = sorted(sizes, key=lambda s: s.active_context_tokens)
    for number, size in enumerate(ordered):
        if number == 0 or on_gpu:
            report(f"warming up for {size.label}")
            short = Size(size.batch, size.input_tokens, WARMUP_OUTPUT_TOKENS)
            _run(engine, short, seed, max_batch_s, lambda answered: _unmarked())
        report(size.label)
        if profiler == "torch":
            written.append(_with_torch(torch, engine, size, folder, seed, max_batch_s))
            continue
        watched = last_steps if profiler == "ncu" else None
        _run(engine, size, seed, max_batch_s, _nvtx(torch, size, watched))
    return written


def machine_path(folder: str | Path) -> Path:
    """Where the measured peaks of a CPU go, in the form of ``--hardware-file``."""
    return Path(folder) / "machine.toml"


def measure_machine(folder: str | Path) -> Hardware | None:
    """Measure a CPU on the engine's threads and write `machine_path`; ``None`` with a GPU.

    Raises:
        ServefitError: PyTorch is missing, or the file cannot be written.
    """
    torch = _torch("torch")
    if torch.cuda.is_available():
        return None
    hardware = measure_torch_cpu(torch)
    _write(machine_path(folder), hardware_toml(hardware))
    return hardware


def write_description(
    folder: str | Path, model: str, settings: Mapping[str, Any], sizes: Sequence[Size]
) -> None:
    """What was run, beside the traces: ``capture.json``; raises `ServefitError`."""
    known = {name: value for name, value in settings.items() if value is not None}
    points = [[s.batch, s.input_tokens, s.output_tokens] for s in sizes]
    text = json.dumps({"model": model, **known, "sizes": points}, indent=2)
    _write(Path(folder) / "capture.json", text + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None


def outer_command(profiler: Profiler, folder: str, arguments: Sequence[str]) -> list[str]:
    """The command that profiles ``servefit`` with these arguments, and the one to export by.

    Args:
        profiler: ``nsys`` or ``ncu``.
        folder: where the report goes.
        arguments: of ``servefit``.
    """
    inner = [sys.executable, "-m", "servefit", *arguments]
    if profiler == "nsys":
        options = ["--trace=cuda,nvtx", "--cuda-graph-trace=node", "--sample=none"]
        options += ["--capture-range=cudaProfilerApi", "--capture-range-end=repeat"]
        options += ["--gpu-metrics-devices=0", "--force-overwrite=true"]
        return ["nsys", "profile", *options, "-o", f"{folder}/nsys", *inner]
    sections = [word for name in NCU_SECTIONS for word in ("--section", name)]
    options = ["--profile-from-start", "off", "--clock-control", "none", "--nvtx", *sections]
    return [
        "ncu",
        *options,
        "--metrics",
        ",".join(NCU_METRICS),
        "-f",
        "-o",
        f"{folder}/ncu",
        *inner,
    ]


def start(profiler: Profiler, folder: str, arguments: Sequence[str]) -> None:
    """Run ``servefit`` with these arguments under nsys or ncu, to its end.

    Raises:
        ServefitError: the tool is not on PATH, does not start, or fails; the folder cannot be made.
    """
    if shutil.which(profiler) is None:
        raise ServefitError(
            f"--profiler {profiler}: {profiler} is not on PATH: install it, use --profiler torch, "
            "or print the command for another machine by --dry-run"
        )
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        code = subprocess.run(outer_command(profiler, folder, arguments), check=False).returncode
    except OSError as error:
        raise ServefitError(
            f"--profiler {profiler}: cannot be started in {folder} ({error.strerror})"
        ) from None
    if code:
        raise ServefitError(
            f"--profiler {profiler}: ended with status {code}: see its output above"
        )


def check_one_process(engine_arguments: Mapping[str, Any]) -> None:
    """Refuse engines of several processes: a profiler of this one sees no kernel of theirs.

    Raises:
        ServefitError: a parallel size is above 1.
    """
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        size = engine_arguments.get(name)
        if isinstance(size, int) and size > 1:
            raise ServefitError(
                f"{name} = {size}: a capture marks and profiles the steps of one process, and "
                "vLLM's workers would be others: capture with 1"
            )


def export_command(profiler: Profiler, folder: str) -> str:
    """How to turn its report into a file that is read here."""
    if profiler == "nsys":
        return f'for f in {folder}/nsys*.nsys-rep; do nsys export --type sqlite "$f"; done'
    return f"ncu --import {folder}/ncu.ncu-rep --page raw --csv --nvtx > {folder}/ncu.csv"


def _run(engine: Engine, size: Size, seed: int, limit_s: float, around: Any) -> None:
    try:
        engine.run(
            size.batch,
            size.input_tokens,
            size.output_tokens,
            seed=seed,
            give_up_s=time.perf_counter() + limit_s,
            around=around,
        )
    except OutOfTimeError:
        raise ServefitError(
            f"{size.label}: not done in {limit_s:g} s: profile smaller batches, or raise "
            "--max-point-time"
        ) from None


def _with_torch(
    torch: Any, engine: Engine, size: Size, folder: str | Path, seed: int, limit_s: float
) -> Path:
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    path = trace_path(folder, size)
    plain = path.with_suffix("")
    with profile(activities=activities) as session:
        _run(engine, size, seed, limit_s, lambda done: record_function(mark_of(size, done).name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        session.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target)
        plain.unlink()
    except OSError as error:
        raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None
    return path


@contextmanager
def _unmarked() -> Iterator[None]:
    yield


def _nvtx(
    torch: Any, size: Size, last_steps: int | None
) -> Callable[[Collection[int]], AbstractContextManager[None]]:
    """NVTX ranges; the profiler records every step, or only the last decode steps."""

    @contextmanager
    def around(answered: Collection[int]) -> Iterator[None]:
        left = size.output_tokens - min(answered)
        recorded = last_steps is None or (min(answered) > 0 and left <= last_steps)
        if recorded:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push(mark_of(size, answered).name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
            # With every step recorded, one range from the first to the last.
            if recorded and (last_steps is not None or left == 1):
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()

    return around


def _torch(profiler: Profiler) -> Any:
    try:
        import torch
    except ImportError:
        raise ServefitError(
            "capturing runs PyTorch and vLLM in this Python, where they are not installed: "
            "install servefit into vLLM's environment"
        ) from None
    if profiler != "torch" and not torch.cuda.is_available():
        raise ServefitError(f"--profiler {profiler}: needs a CUDA GPU; use --profiler torch")
    return torch
