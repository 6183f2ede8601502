"""Whether the client itself keeps up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

#: How often the event loop is checked; its timers are exact to about 1 ms.
INTERVAL_S = 0.01


class LagMonitor:
    """Measures by how much the event loop runs late: a bound on the error of timestamps."""

    def __init__(self) -> None:
        """Without samples; see `run`."""
        self._samples: list[tuple[float, float]] = []

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            due = time.perf_counter() + INTERVAL_S
            await asyncio.sleep(INTERVAL_S)
            at_s = time.perf_counter()
            self._samples.append((at_s, at_s - due))

    def between(self, start_s: float, end_s: float) -> Sequence[float]:
        """Sorted lags, in seconds, seen in a window."""
        return sorted(lag for at_s, lag in self._samples if start_s <= at_s <= end_s)
