"""PyTorch profiler traces: Chrome JSON as ``export_chrome_trace`` writes it, plain or gzipped.

On a GPU the kernels, copies and fills of its streams count; on a CPU the operators, each with the
time in which it called no other (self time). An operator that no rule knows, or that only keeps the
books (``inherit`` in the kernel table), counts for the one that called it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from servefit.characterise.classify import BOOKKEEPING, INHERIT, UNCLASSIFIED, KernelTable
from servefit.characterise.marks import Mark, read_mark
from servefit.characterise.profile import KernelTime, Profile, StepTime, merged
from servefit.errors import ServefitError

TOOL = "PyTorch profiler"
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")


class _Event(NamedTuple):
    start_us: float
    end_us: float
    name: str
    category: str
    thread: tuple[Any, Any]
    correlation: Any


def read(text: str, where: str, table: KernelTable) -> Profile:
    """Time by kernel and marked step.

    Raises:
        ServefitError: not JSON, no trace events, or an event is malformed.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ServefitError(f"{where}: is no JSON (cut off?): {error}") from None
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise ServefitError(f"{where}: has no traceEvents: is it a PyTorch profiler trace?")
    spans = list(_spans(events, where))
    marks = _marks(spans)
    on_gpu = [e for e in spans if e.category in _ON_GPU]
    kernels = _gpu_kernels(on_gpu, spans, marks, table) if on_gpu else _ops(spans, marks, table)
    found = merged(kernels)
    if not found:
        raise ServefitError(f"{where}: holds neither GPU kernels nor CPU operators")
    steps = tuple(
        StepTime(m.phase, (e.end_us - e.start_us) / 1e6, m.size, m.token) for e, m in marks
    )
    device = "GPU" if on_gpu else "CPU"
    return Profile(where, f"{TOOL} ({device})", kernels=found, steps=steps)


def _spans(events: Iterable[Any], where: str) -> Iterator[_Event]:
    """Complete events (``ph`` X)."""
    for number, event in enumerate(events):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        start, duration = _time(event.get("ts")), _time(event.get("dur", 0))
        name = event.get("name")
        if start is None or duration is None or not isinstance(name, str):
            raise ServefitError(f"{where}: event {number}: needs a name, and numbers ts and dur")
        if duration < 0:
            raise ServefitError(f"{where}: event {number}: dur = {duration:g}: must be at least 0")
        arguments = event.get("args")
        correlation = arguments.get("correlation") if isinstance(arguments, dict) else None
        yield _Event(
            start,
            start + duration,
            name,
            str(event.get("cat", "")),
            (str(event.get("pid")), str(event.get("tid"))),
            correlation if isinstance(correlation, int) else None,
        )


def _time(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # No trace is longer than the age of the universe, and integers in JSON have no limit.
    return float(value) if -1e24 < value < 1e24 else None


_Marked = list[tuple[_Event, Mark]]


def _marks(spans: Iterable[_Event]) -> _Marked:
    """Our ranges on the CPU's timeline, in order."""
    found = [(e, read_mark(e.name)) for e in spans if e.category == "user_annotation"]
    return sorted([(e, mark) for e, mark in found if mark is not None], key=lambda m: m[0].start_us)


class _StepAt:
    """Which marked step a moment lies in."""

    def __init__(self, marks: _Marked) -> None:
        self._marks, self._starts = marks, [e.start_us for e, _ in marks]

    def __call__(self, time_us: float) -> int | None:
        index = bisect_right(self._starts, time_us) - 1
        inside = index >= 0 and time_us <= self._marks[index][0].end_us
        return index if inside else None


def _gpu_kernels(
    on_gpu: Iterable[_Event], spans: Iterable[_Event], marks: _Marked, table: KernelTable
) -> Iterator[KernelTime]:
    """Kernels; each belongs to the step that launched it."""
    launched = {e.correlation: e.start_us for e in spans if e.category in _LAUNCHES}
    step_at = _StepAt(marks)
    for event in on_gpu:
        step = step_at(launched.get(event.correlation, event.start_us))
        seconds = (event.end_us - event.start_us) / 1e6
        yield KernelTime(event.name, table.classify(event.name), 1, seconds, step)


def _ops(spans: Iterable[_Event], marks: _Marked, table: KernelTable) -> Iterator[KernelTime]:
    """CPU operators by self time; nesting is that of their times, thread by thread."""
    threads: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    for event in spans:
        if event.category == "cpu_op":
            threads[event.thread].append(event)
    step_at = _StepAt(marks)
    for events in threads.values():
        events.sort(key=lambda e: (e.start_us, -e.end_us))
        stack: list[tuple[_Event, str, list[float]]] = []  # event, its class, time of its callees
        for event in events:
            while stack and event.start_us >= stack[-1][0].end_us:
                yield _self_time(stack.pop(), step_at)
            kernel_class = table.classify(event.name)
            if kernel_class in (INHERIT, UNCLASSIFIED):
                above = stack[-1][1] if stack else INHERIT
                inherits = kernel_class == INHERIT or above not in (INHERIT, UNCLASSIFIED)
                kernel_class = above if inherits else UNCLASSIFIED
            if stack:
                stack[-1][2][0] += event.end_us - event.start_us
            stack.append((event, kernel_class, [0.0]))
        while stack:
            yield _self_time(stack.pop(), step_at)


def _self_time(entry: tuple[_Event, str, list[float]], step_at: _StepAt) -> KernelTime:
    event, kernel_class, (inner_us,) = entry
    seconds = max(0.0, event.end_us - event.start_us - inner_us) / 1e6
    # Bookkeeping that nobody called is the host's own work.
    shown = BOOKKEEPING if kernel_class == INHERIT else kernel_class
    return KernelTime(event.name, shown, 1, seconds, step_at(event.start_us))
