"""Load: requests kept in flight at a held number, or sent at given times."""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from servefit.profiling.client import Client
from servefit.profiling.prompts import Prompts
from servefit.profiling.record import Ask, Record
from servefit.profiling.server import Server
from servefit.profiling.window import Requests

#: First and longest pause of one slot after a failure.
BACKOFF_S = (0.1, 5.0)
#: A pause between arrivals is slept in parts of this, so that the load can be stopped.
LONGEST_SLEEP_S = 0.5
#: So many ports has a client towards one server, somewhat fewer than 28,000 on Linux.
MAX_IN_FLIGHT = 20_000
#: Files that are kept free for everything but requests.
SPARE_FILES = 64


class OverloadError(Exception):
    """An open loop has more requests in flight than there may be connections."""


@dataclass
class Load:
    """The requests of one point, as they are sent and answered.

    Attributes:
        records: every request, in the order of sending.
        in_flight: those sent and not ended, by position in ``records``.
        ended: those that ended, however, in that order.
        completed, failed: those that ended so, in the order of ending.
        stopping: send no further request.
        last_arrival_s: when the last request of an open loop was sent; ``None``: more will come.
    """

    client: Client
    server: Server
    prompts: Prompts
    records: list[Record] = field(default_factory=list)
    in_flight: dict[int, Record] = field(default_factory=dict)
    ended: Requests = field(default_factory=Requests)
    completed: list[Record] = field(default_factory=list)
    failed: list[Record] = field(default_factory=list)
    stopping: bool = False
    last_arrival_s: float | None = None

    async def send(self, ask: Ask, *, scheduled_s: float, warmup: bool = False) -> Record:
        """Send one request and wait for its end."""
        body = self.server.body(self.prompts.make(ask.input_tokens), ask)
        record = Record(ask, scheduled_s, warmup=warmup)
        position = len(self.records)
        self.records.append(record)
        self.in_flight[position] = record
        try:
            await self.client.generate(self.server.endpoint, body, record)
        finally:
            del self.in_flight[position]
            self.ended.add(record)
        (self.failed if record.outcome == "failed" else self.completed).append(record)
        return record

    async def closed(self, asks: Iterator[Ask], concurrency: int, rng: random.Random) -> None:
        """Keep ``concurrency`` requests in flight until cancelled or ``stopping``.

        The first request of each slot is a warm-up, and is cut to a part of its length, the parts
        spread evenly over (0, 1): so old are requests in a steady state of equal lengths, and
        without this all slots would start, prefill and end together for a long time.
        """
        parts = [(i + 0.5) / concurrency for i in range(concurrency)]
        rng.shuffle(parts)
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(self._slot(asks, part, rng))

    async def _slot(self, asks: Iterator[Ask], first_part: float, rng: random.Random) -> None:
        ask = next(asks)
        ask = Ask(ask.input_tokens, max(1, round(ask.output_tokens * first_part)))
        warmup, failures = True, 0
        due_s = time.perf_counter()
        while not self.stopping:
            record = await self.send(ask, scheduled_s=due_s, warmup=warmup)
            due_s = time.perf_counter()
            if record.outcome == "failed":
                pause_s = record.retry_after_s
                if pause_s is None:
                    pause_s = min(BACKOFF_S[0] * 2**failures, BACKOFF_S[1]) * rng.uniform(0.5, 1)
                record.pause_s = pause_s
                failures = min(failures + 1, 10)
                await asyncio.sleep(pause_s)
                due_s = time.perf_counter()
            else:
                failures = 0
            warmup = False
            ask = next(asks)

    async def open(self, arrivals: Iterator[tuple[float, Ask]]) -> None:
        """Send each request at its time, whatever is in flight; end when all are answered.

        Raises:
            OverloadError: more would be in flight than there may be connections.
        """
        start_s, most = time.perf_counter(), _most_connections()
        async with asyncio.TaskGroup() as group:
            for at_s, ask in arrivals:
                due_s = start_s + at_s
                while not self.stopping and (delay_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(min(delay_s, LONGEST_SLEEP_S))
                if self.stopping:
                    return
                if len(self.in_flight) >= most:
                    raise OverloadError(
                        f"{most} requests in flight, more than connections may be open: the "
                        "arrivals are more than the server can do, ask for a lower rate"
                    )
                group.create_task(self.send(ask, scheduled_s=due_s))
            self.last_arrival_s = time.perf_counter()

    @property
    def waiting_since_s(self) -> float:
        """Since when requests are in flight and none gets a token or ends; needs one in flight.

        Before the oldest was sent there was nothing to wait for, however long ago the last ended.
        """
        sent = (r.scheduled_s if r.sent_s is None else r.sent_s for r in self.in_flight.values())
        return max(min(sent), self.progress_s)

    @property
    def progress_s(self) -> float:
        """When a request last got a token or ended; 0 before that."""
        times = [r.last_token_s for r in self.in_flight.values()]
        times += [ended[-1].finished_s for ended in (self.completed, self.failed) if ended]
        return max((at_s for at_s in times if at_s is not None), default=0.0)


def raise_file_limit() -> None:
    """Allow as many connections as the system does: each request in flight has one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _most_connections() -> int:
    """How many requests can be in flight; the system's files are fewer than its ports."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - SPARE_FILES if 0 <= soft < MAX_IN_FLIGHT else MAX_IN_FLIGHT
