"""Whether the client itself keeps up."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

#: How often the event loop is checked.
INTERVAL_S = 0.01
#: Timers of the loop are rounded up to this; what the network brings does not wait for them.
TIMER_S = 0.001


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Put off Python's search for cycles, which stops the event loop for up to 0.1 s at a time.

    Requests leave next to none; what there is is collected before and after.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class LagMonitor:
    """Measures by how much the event loop runs late: a bound on the error of timestamps."""

    def __init__(self) -> None:
        """Without checks; see `run`."""
        self._checks: list[tuple[float, float]] = []

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            due_s = time.perf_counter() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            self._checks.append((due_s, time.perf_counter()))

    def between(self, start_s: float, end_s: float) -> list[float]:
        """Lags in a window as an event every `INTERVAL_S` would have seen them, sorted."""
        return sorted(lags(self._checks, start_s, end_s))


def lags(checks: Iterable[tuple[float, float]], start_s: float, end_s: float) -> Iterable[float]:
    """Waits of events that come at even times, from checks that wait for each other.

    While the loop stalls, no further check is made: a stall of 2 s would count once among
    thousands (coordinated omission). The checks that it left out, due `INTERVAL_S` apart, are
    put in with the waits that they would have had, so that each lag stands for the same time.

    Args:
        checks: when each was due, and when it came.
        start_s, end_s: only those due in this window count.
    """
    for due_s, at_s in checks:
        while due_s <= at_s:
            if start_s <= due_s <= end_s:
                yield at_s - due_s
            due_s += INTERVAL_S


def mean_wait_s(lag_s: Sequence[float]) -> float:
    """Expected wait for the client of an event at a random time: sum (lag - `TIMER_S`)+ / n.

    With lags at even times, a single stall of S seconds in T adds S^2 / 2T.
    """
    return sum(max(0.0, lag - TIMER_S) for lag in lag_s) / len(lag_s) if lag_s else 0.0
