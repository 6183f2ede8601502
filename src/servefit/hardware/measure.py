"""Peak rates of this machine's CPU, measured: what a data sheet says of a GPU."""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from servefit.errors import ServefitError
from servefit.hardware.accelerator import Hardware

#: Side of the square matrices: large enough that a product does not wait for memory.
MATRIX_SIZE = 2048
#: Smallest array that is copied, where the caches are smaller than half of it.
SMALLEST_COPY_BYTES = 256 * 1024**2
#: Each rate is the best of as many repeats as fit into this time: whatever else the machine does
#: can only make one slower. Where none was left alone, the longer time is used up.
SECONDS_A_RATE, MOST_SECONDS_A_RATE = 1.5, 4.0
#: A timing that waited for a core for more than this share of its time was not left alone.
UNDISTURBED_SHARE = 0.03


def default_threads() -> int:
    """Half of the CPUs that this process may use, at least one.

    CPUs are hardware threads, of which a core mostly has two that share its arithmetic; and a
    timing needs a core that nobody else runs on.
    """
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)) // 2)
    return max(1, (os.cpu_count() or 1) // 2)


def measure_cpu(threads: int | None = None) -> Hardware:
    """Measure float32 FLOP/s and memory bandwidth of ``threads`` cores; takes a few seconds.

    FLOP/s are 2 n^3 / seconds of a float32 matrix product by numpy's BLAS. The bandwidth is
    2 x bytes / seconds of copying an array at least twice as large as the largest cache (one read
    and one write a byte, as STREAM counts). Each is the best of several. The engine's own matrix
    products need not be the BLAS's: an efficiency against this peak is of the same threads, not of
    the same code.

    Args:
        threads: `default_threads` if ``None``.

    Raises:
        ServefitError: ``threads`` is not from 1 to the CPUs of this process, threadpoolctl is not
            installed, or too little memory is free.
    """
    count = default_threads() if threads is None else threads
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not 1 <= count <= (cpus or 1):
        raise ServefitError(f"threads = {count}: this process may use from 1 to {cpus} CPUs")
    flops, blas = _flops_per_s(count)
    bandwidth, copy = _bandwidth_bytes_per_s(count)
    plural = "thread" if count == 1 else "threads"
    return Hardware(
        name=cpu_name(count),
        peak_flops_per_s={"float32": flops},
        memory_bandwidth_bytes_per_s=bandwidth,
        memory_bytes=_memory_bytes(),
        sources={
            "peak_flops_per_s": f"measured: {blas}, {count} {plural}",
            "memory_bandwidth_bytes_per_s": f"measured: {copy}, {count} {plural}",
            "memory_bytes": "physical memory, as the operating system says",
        },
    )


def cpu_name(threads: int) -> str:
    """What rows call so many cores of this machine's CPU."""
    return f"cpu: {_processor()}, {threads} {'thread' if threads == 1 else 'threads'}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def waited_s(thread_id: int) -> float:
    """Seconds that a thread of this process has waited so far for a core that others ran on.

    As the Linux scheduler counts them; 0 where the operating system does not.

    Args:
        thread_id: of the operating system, as `threading.get_native_id` gives it.
    """
    try:
        text = Path(f"/proc/self/task/{thread_id}/schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def time_and_wait_s(thread_id: int) -> tuple[float, float]:
    """``time.perf_counter`` and `waited_s` of one moment: no wait falls between the two."""
    while True:
        waited_before_s, now_s = waited_s(thread_id), time.perf_counter()
        if waited_s(thread_id) == waited_before_s:
            return now_s, waited_before_s


def _flops_per_s(threads: int) -> tuple[float, str]:
    """The rate, and how it was measured."""
    pools = _threadpoolctl()
    left = np.random.default_rng(0).random((MATRIX_SIZE, MATRIX_SIZE), dtype=np.float32)
    right, product = left.T.copy(), np.empty_like(left)
    with pools.threadpool_limits(limits=threads, user_api="blas"):
        seconds, how = _best_seconds(lambda: np.matmul(left, right, out=product), threads)
        names = sorted(
            f"{pool['internal_api']} {pool['version']} ({pool.get('architecture') or 'any CPU'})"
            for pool in pools.threadpool_info()
            if pool["user_api"] == "blas"
        )
    blas = ", ".join(names) or "numpy's own loops"
    size = f"{MATRIX_SIZE} x {MATRIX_SIZE}"
    return 2.0 * MATRIX_SIZE**3 / seconds, f"float32 product of {size} matrices by {blas}, {how}"


def _bandwidth_bytes_per_s(threads: int) -> tuple[float, str]:
    """The rate, and how it was measured."""
    size = max(SMALLEST_COPY_BYTES, 2 * _largest_cache_bytes())
    try:
        source = np.ones(size // 8)
        target = np.zeros(size // 8)
    except MemoryError:
        raise ServefitError(
            f"memory bandwidth: two arrays of {size / 2**20:.0f} MiB do not fit into the free "
            "memory: close other programs"
        ) from None
    targets, sources = np.array_split(target, threads), np.array_split(source, threads)
    # numpy copies on one core, but without the interpreter's lock.
    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            others = pool.map(np.copyto, targets[1:], sources[1:])
            np.copyto(targets[0], sources[0])
            list(others)

        seconds, how = _best_seconds(copy, threads)
    return 2.0 * source.nbytes / seconds, f"copy of {size / 2**20:.0f} MiB, read and write, {how}"


def _best_seconds(work: Callable[[], object], threads: int) -> tuple[float, str]:
    """Least time of one call, after one that is not counted; and how it was found, in words.

    Where every call had to wait for a core and ``work`` runs on one thread, the waits are taken
    out, and the median of that is given; those of several threads overlap: only the leading one's
    are looked at, and stay in.
    """
    work()
    left_alone, busy = [], []
    thread = threading.get_native_id()
    start_s, waited_before_s = time_and_wait_s(thread)
    begin_s = start_s
    while True:
        work()
        end_s, waited_after_s = time_and_wait_s(thread)
        seconds, waited = end_s - begin_s, waited_after_s - waited_before_s
        begin_s, waited_before_s = end_s, waited_after_s
        if waited <= UNDISTURBED_SHARE * seconds:
            left_alone.append(seconds)
        else:
            busy.append(seconds - waited if threads == 1 else seconds)
        if end_s - start_s > (SECONDS_A_RATE if left_alone else MOST_SECONDS_A_RATE):
            break
    if left_alone:
        return min(left_alone), f"best of {len(left_alone)}"
    if threads == 1:
        return statistics.median(busy), f"median of {len(busy)}, without the time waited for a core"
    return min(busy), f"best of {len(busy)} on a busy machine, too low"


def _largest_cache_bytes() -> int:
    """Of the first CPU; 0 where the operating system does not tell."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = file.read_text(encoding="ascii").strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes)


def _memory_bytes() -> float | None:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return None


def _threadpoolctl() -> Any:
    try:
        import threadpoolctl
    except ImportError as error:
        raise ServefitError(
            "measuring the CPU needs threadpoolctl, which is not installed: "
            "pip install 'servefit[local]'"
        ) from error
    return threadpoolctl
