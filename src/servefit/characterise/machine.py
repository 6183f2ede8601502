"""This machine's CPU through PyTorch, on the engine's own threads: the roof over its kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from servefit.hardware import Hardware
from servefit.hardware.measure import cpu_name

#: Side of the matrices of the product, and numbers in each of the triad's three arrays: 480 MiB,
#: as no cache that a core may fill is much larger.
MATRIX_SIZE = 2048
TRIAD_NUMBERS = 120 * 2**20
REPEATS = 10


def measure_torch_cpu(torch: Any) -> Hardware:
    """Float32 FLOP/s of a matrix product, and bandwidth by a triad as STREAM counts it.

    The triad is a = b + s c over arrays of `TRIAD_NUMBERS` floats: 3 x 4 bytes a number. Each rate
    is the best of `REPEATS`, for one thread without the time that it waited for a core.

    Args:
        torch: the module, with the number of threads that the engine runs on.
    """
    threads = int(torch.get_num_threads())
    left = torch.rand(MATRIX_SIZE, MATRIX_SIZE)
    product = torch.empty_like(left)
    flops = 2.0 * MATRIX_SIZE**3 / _best_s(lambda: torch.mm(left, left, out=product), threads)
    a, b, c = (torch.full((TRIAD_NUMBERS,), value) for value in (0.0, 1.0, 2.0))
    triad_s = _best_s(lambda: torch.add(b, c, alpha=3.0, out=a), threads)
    how = f"best of {REPEATS}, {threads} {'thread' if threads == 1 else 'threads'}"
    size = f"{MATRIX_SIZE} x {MATRIX_SIZE}"
    mib = TRIAD_NUMBERS * 4 / 2**20
    return Hardware(
        name=cpu_name(threads),
        peak_flops_per_s={"float32": flops},
        memory_bandwidth_bytes_per_s=3 * 4 * TRIAD_NUMBERS / triad_s,
        sources={
            "peak_flops_per_s": f"measured: float32 product of {size} by PyTorch, {how}",
            "memory_bandwidth_bytes_per_s": f"measured: triad over 3 x {mib:.0f} MiB, {how}",
        },
    )


def _best_s(work: Callable[[], object], threads: int) -> float:
    """Least seconds of one call, after one that is not counted."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    work()
    times = []
    for _ in range(REPEATS):
        start_s = clock()
        work()
        times.append(clock() - start_s)
    return min(times)
