"""The server's own metrics over the time of a point."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from servefit.profiling.client import Client
from servefit.profiling.engines import read_metrics
from servefit.profiling.server import Server

INTERVAL_S = 0.25


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Quantities of one ``/metrics`` page, as they were at some time from asked to answered."""

    asked_s: float
    answered_s: float
    values: Mapping[str, float]

    @property
    def at_s(self) -> float:
        """The middle of that time."""
        return (self.asked_s + self.answered_s) / 2

    def far_from(self, at_s: float) -> float:
        """How far off a given time it may have been, at most."""
        return max(abs(self.asked_s - at_s), abs(self.answered_s - at_s))


@dataclass
class MetricsPoller:
    """Snapshots of ``/metrics``, in the order of their answers."""

    client: Client
    server: Server
    snapshots: list[Snapshot] = field(default_factory=list)

    async def sample(self) -> Mapping[str, float] | None:
        """Take one snapshot; ``None`` where the server shows none."""
        if self.server.metrics_url is None or self.server.engine is None:
            return None
        asked_s = time.perf_counter()
        reply = await self.client.query(self.server.metrics_url)
        answered_s = time.perf_counter()
        if reply is None or reply.status != 200:
            return None
        values = read_metrics(reply.text, self.server.engine, self.server.model)
        self.snapshots.append(Snapshot(asked_s, answered_s, values))
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
        duration_s: time between the first and the last snapshot used.
        duration_err_s: by how much that may be off, since each shows some time of its poll.
        samples: how many there are.
        mean, peak: of each gauge over the samples.
        delta: growth of each counter.
    """

    duration_s: float = 0.0
    samples: int = 0
    mean: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    delta: Mapping[str, float] = field(default_factory=dict)
    duration_err_s: float = 0.0

    @classmethod
    def of(cls, snapshots: Iterable[Snapshot], start_s: float, end_s: float) -> Metrics:
        """From the snapshot nearest to the start to the one nearest to the end (`far_from`).

        Of polls that overlap, whose order nobody knows, only those answered first are used, which
        leaves most. A counter that falls was reset: its growth is unknown.
        """
        known: list[Snapshot] = []
        for snapshot in sorted(snapshots, key=lambda s: s.answered_s):
            if not known or snapshot.asked_s >= known[-1].answered_s:
                known.append(snapshot)
        if len(known) < 2:
            return cls()
        first = min(range(len(known)), key=lambda i: known[i].far_from(start_s))
        last = min(range(len(known)), key=lambda i: known[i].far_from(end_s))
        if last <= first:
            return cls()
        used, ends = known[first : last + 1], (known[first], known[last])
        keys = set.intersection(*(set(s.values) for s in used))
        series = {k: [s.values[k] for s in used] for k in keys}
        return cls(
            duration_s=ends[1].at_s - ends[0].at_s,
            duration_err_s=sum(s.answered_s - s.asked_s for s in ends) / 2,
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
