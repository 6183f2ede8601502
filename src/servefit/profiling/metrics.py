"""The server's own metrics over the time of a point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from servefit.profiling.client import Client
from servefit.profiling.engines import read_metrics
from servefit.profiling.server import Server

INTERVAL_S = 0.25


@dataclass
class MetricsPoller:
    """Snapshots of ``/metrics``: each a time and the quantities found."""

    client: Client
    server: Server
    snapshots: list[tuple[float, Mapping[str, float]]] = field(default_factory=list)

    async def sample(self) -> Mapping[str, float] | None:
        """Take one snapshot; ``None`` where the server shows none."""
        if self.server.metrics_url is None or self.server.engine is None:
            return None
        before_s = time.perf_counter()
        reply = await self.client.query(self.server.metrics_url)
        if reply is None or reply.status != 200:
            return None
        values = read_metrics(reply.text, self.server.engine, self.server.model)
        self.snapshots.append(((before_s + time.perf_counter()) / 2, values))
        return values

    async def run(self) -> None:
        """Sample until cancelled."""
        while self.server.metrics_url is not None:
            await self.sample()
            await asyncio.sleep(INTERVAL_S)

    def between(self, start_s: float, end_s: float) -> Metrics:
        """What the server says of a window, from the snapshots nearest to its ends."""
        return Metrics.of(self.snapshots, start_s, end_s)


@dataclass(frozen=True)
class Metrics:
    """A window as the server saw it; ``None`` and missing keys are unknown.

    Attributes:
        duration_s: time between the snapshots used.
        samples: how many there are.
        mean, peak: of each gauge over the samples.
        delta: growth of each counter.
    """

    duration_s: float = 0.0
    samples: int = 0
    mean: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    delta: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, snapshots: list[tuple[float, Mapping[str, float]]], start_s: float, end_s: float
    ) -> Metrics:
        """From the snapshot nearest to the start to the one nearest to the end.

        A counter that falls was reset: its growth is unknown.
        """
        if len(snapshots) < 2:
            return cls()
        times = [at_s for at_s, _ in snapshots]
        first = min(range(len(times)), key=lambda i: abs(times[i] - start_s))
        last = min(range(len(times)), key=lambda i: abs(times[i] - end_s))
        if last <= first:
            return cls()
        used = snapshots[first : last + 1]
        keys = set.intersection(*(set(values) for _, values in used))
        series = {k: [values[k] for _, values in used] for k in keys}
        return cls(
            duration_s=times[last] - times[first],
            samples=len(used),
            mean={k: sum(v) / len(v) for k, v in series.items()},
            peak={k: max(v) for k, v in series.items()},
            delta={k: v[-1] - v[0] for k, v in series.items() if v == sorted(v)},
        )

    @property
    def queue_time_mean_s(self) -> float | None:
        """Mean time that the requests which ended in the window had waited for a seat."""
        return self._mean_time_s("queue_time_s", "queue_count")

    @property
    def service_time_mean_s(self) -> float | None:
        """Mean time that they then had a seat, until their last token."""
        return self._mean_time_s("service_time_s", "service_count")

    @property
    def prefill_time_mean_s(self) -> float | None:
        """The part of it up to their first token."""
        return self._mean_time_s("prefill_time_s", "prefill_count")

    def _mean_time_s(self, total: str, count: str) -> float | None:
        if self.delta.get(count, 0.0) <= 0 or total not in self.delta:
            return None
        return self.delta[total] / self.delta[count]

    def rate_per_s(self, counter: str) -> float | None:
        """Growth of a counter per second."""
        if counter not in self.delta or self.duration_s <= 0:
            return None
        return self.delta[counter] / self.duration_s
