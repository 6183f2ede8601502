"""Measuring one point: load, steady window, stop rule."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from servefit.profiling.client import Client
from servefit.profiling.lag import LagMonitor, no_garbage_collection
from servefit.profiling.lengths import Length, TraceRow, arrival_times, draw_asks, read_trace
from servefit.profiling.load import Load, OverloadError
from servefit.profiling.metrics import Metrics, MetricsPoller
from servefit.profiling.plan import Point
from servefit.profiling.prompts import Prompts
from servefit.profiling.record import Ask, Record
from servefit.profiling.server import Server
from servefit.profiling.verdict import hopeless, no_window, unusable
from servefit.profiling.window import Interval, Window, intervals, steady_window

#: A point without so many completions is not ended by its precision.
MIN_COMPLETIONS = 8
#: The open loop's warm-up lasts this many times the mean E2E, and until so many are answered.
OPEN_WARMUP_E2E, OPEN_WARMUP_COMPLETIONS = 2.0, 10
TICK_S, REPORT_TICKS, JUDGE_TICKS = 0.05, 10, 5
#: A point is not judged again before its completions have grown by this factor.
JUDGE_GROWTH = 1.02
SETTLE_S = 30.0


@dataclass(frozen=True)
class Limits:
    """When a point ends.

    Attributes:
        rel_err: wanted half width of the 95 % intervals of throughput and mean E2E.
        max_point_s: its time is up, warm-up included.
        stall_s: no token from any request for so long means that the server hangs.
        min_window_s: it does not end by its precision before; slower noise would go unseen.
    """

    rel_err: float = 0.02
    max_point_s: float = 600.0
    stall_s: float = 60.0
    min_window_s: float = 2.0


@dataclass(frozen=True)
class Measurement:
    """A point as measured.

    Attributes:
        window: the steady window.
        errors: relative half widths of throughput and mean E2E.
        stopped_by: ``precision``, ``time`` or ``trace_end``.
        warmup_s: time before the window.
        metrics: the server's view of the window.
        lag_s: sorted event-loop lags at even times of the window, see `LagMonitor.between`.
        records: every request, warm-up and cancelled ones too.
        left_out: requests of the trace that do not fit the server.
    """

    window: Window
    errors: tuple[float, float]
    stopped_by: str
    warmup_s: float
    metrics: Metrics
    lag_s: list[float]
    records: list[Record]
    left_out: int = 0


class PointFailedError(Exception):
    """A point could not be measured; the message is the reason.

    Attributes:
        kind: the reason in one word.
        records: what was sent.
    """

    def __init__(self, kind: str, reason: str, records: list[Record]) -> None:
        """See the attributes."""
        super().__init__(reason)
        self.kind = kind
        self.records = records


async def measure(
    client: Client,
    server: Server,
    prompts: Prompts,
    point: Point,
    limits: Limits,
    *,
    seed: int = 0,
    report: Callable[[str], None] = lambda text: None,
) -> Measurement:
    """Measure one point; every time limit holds whatever the server does.

    Args:
        client, server, prompts: whom to ask, and what.
        point: the load.
        limits: when to end.
        seed: of lengths, arrivals and pauses.
        report: told twice a second how far the point is.

    Raises:
        PointFailedError: too many requests fail, the server hangs, or nothing is completed.
        ServefitError: the point asks for more than the server can do.
    """
    trace, left_out = None, 0
    if point.trace is not None:
        trace, left_out = read_trace(point.trace, server.max_model_len)
    replayed = len(trace) if trace is not None and point.arrivals == "trace" else None
    watch = _Watch(client, server, prompts, point, limits, replayed)
    drive = watch.driver(trace, random.Random(seed), seed)
    await watch.look_at_rest()
    with no_garbage_collection():
        async with _running(watch.lag.run()), _running(watch.poller.run()):
            task = asyncio.ensure_future(drive)
            try:
                stopped_by = await watch.until_done(task, report)
                await watch.poller.sample()
                if watch.server.metrics_url is None:
                    await watch.let_finish(task)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await watch.settle()
    return watch.result(stopped_by, left_out)


@dataclass
class _Watch:
    """Follows a point while it runs."""

    client: Client
    server: Server
    prompts: Prompts
    point: Point
    limits: Limits
    replayed: int | None = None
    begun_s: float = field(default_factory=time.perf_counter)
    start_s: float | None = None
    end_s: float = math.nan

    def __post_init__(self) -> None:
        self.load = Load(self.client, self.server, self.prompts)
        self.poller = MetricsPoller(self.client, self.server)
        self.lag = LagMonitor()
        self._closed = self.point.concurrency is not None
        self._at_rest = 0.0
        self._judged = 0
        self._known = Interval(), Interval()

    @property
    def deadline_s(self) -> float:
        """When the point's time is up."""
        return self.begun_s + self.limits.max_point_s

    def driver(
        self, trace: list[TraceRow] | None, rng: random.Random, seed: int
    ) -> Coroutine[Any, Any, None]:
        """The load to run; lengths that the server cannot serve are refused here."""
        point = self.point
        if point.arrivals == "trace":
            assert trace is not None  # `plan.cross` sees to it
            return self.load.open(iter([(row.arrival_s, row.ask) for row in trace]))
        asks = draw_asks(
            None if point.input_length is None else Length(point.input_length),
            None if point.output_length is None else Length(point.output_length),
            trace,
            max_tokens=self.server.max_model_len,
            seed=seed,
        )
        asks = itertools.chain([next(asks)], asks)
        if point.concurrency is not None:
            return self.load.closed(asks, point.concurrency, rng)
        assert point.arrivals is not None
        assert point.rate_per_s is not None
        times: Iterator[float] = arrival_times(point.arrivals, point.rate_per_s, seed + 1)
        pairs: Iterator[tuple[float, Ask]] = zip(times, asks, strict=False)
        return self.load.open(pairs)

    async def look_at_rest(self) -> None:
        """How many requests the server has without ours, which somebody else may have sent."""
        self._at_rest = _busy(await self.poller.sample() or {})

    async def until_done(self, task: asyncio.Future[None], report: Callable[[str], None]) -> str:
        """Wait for precision, the end of time, or a reason to give up."""
        tick = 0
        while True:
            tick += 1
            await asyncio.wait([task], timeout=TICK_S)
            if tick % REPORT_TICKS == 0:
                report(self._state())
            now_s = time.perf_counter()
            # What follows the last arrival of a trace is its drain.
            self.end_s = now_s if self.load.last_arrival_s is None else self.load.last_arrival_s
            if task.done() and (error := task.exception()) is not None:
                error = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
                if isinstance(error, OverloadError):
                    raise PointFailedError("overload", str(error), self.load.records)
                raise error
            self._give_up_if_failing(now_s)
            if self.start_s is None:
                self.start_s = self._warm_at()
                if self.start_s is not None:
                    await self.poller.sample()
            elif tick % JUDGE_TICKS == 0 and self._precise(now_s):
                return "precision"
            if task.done():
                return "trace_end"
            if now_s >= self.deadline_s:
                return "time"

    def _state(self) -> str:
        if self.start_s is None:
            return f"warming up, {len(self.load.completed)} completed"
        wide = max(known.half_width for known in self._known)
        state = f"known to ±{wide:.1%}" if math.isfinite(wide) else "measuring"
        return f"{len(self.load.completed)} completed, {state}"

    def _warm_at(self) -> float | None:
        """When the load became steady; ``None``: not yet."""
        done = self.load.completed
        if self.point.concurrency is not None:
            warm = [r.finished_s for r in (*done, *self.load.failed) if r.warmup]
            if len(warm) < self.point.concurrency:
                return None
            return max(at_s for at_s in warm if at_s is not None)
        if len(done) < OPEN_WARMUP_COMPLETIONS:
            return None
        mean_s = sum(r.e2e_s or 0.0 for r in done) / len(done)
        last = max(r.last_token_s or 0.0 for r in done)
        return last if last - self.begun_s > OPEN_WARMUP_E2E * mean_s else None

    def _precise(self, now_s: float) -> bool:
        """Whether throughput and E2E are known well enough, over at least one turnover."""
        assert self.start_s is not None
        if self.point.arrivals == "trace":
            return False
        count = len(self.load.completed)
        if count < JUDGE_GROWTH * self._judged + 1:
            return False
        self._judged = count
        window = self._window(now_s)
        needed = max(MIN_COMPLETIONS, self.point.concurrency or 2 * MIN_COMPLETIONS)
        if (
            window is None
            or len(window.completed) < needed
            or window.duration_s < self.limits.min_window_s
        ):
            return False
        self._known = intervals(window, closed=self._closed)
        wanted = self.limits.rel_err
        return all(k.known_within(wanted) for k in self._known) and unusable(window) is None

    def _window(self, end_s: float) -> Window | None:
        assert self.start_s is not None
        running = self.load.in_flight.values()
        return steady_window(
            self.load.ended, self.start_s, end_s, closed=self._closed, running=running
        )

    def _give_up_if_failing(self, now_s: float) -> None:
        load = self.load
        if load.failed and (problem := hopeless(load.ended, self.start_s, now_s, self.deadline_s)):
            raise PointFailedError(*problem, load.records)
        if load.in_flight and now_s - load.waiting_since_s > self.limits.stall_s:
            raise PointFailedError(
                "hang", f"no token from any request for {self.limits.stall_s:g} s", load.records
            )

    async def let_finish(self, task: asyncio.Future[None]) -> None:
        """Let what is in flight end by itself, where nobody could see that it is gone."""
        self.load.stopping = True
        await asyncio.wait([task], timeout=SETTLE_S)

    async def settle(self) -> None:
        """Wait until the server has dropped what was cancelled, so that no point meets the last."""
        give_up_s = time.perf_counter() + SETTLE_S
        while time.perf_counter() < give_up_s:
            values = await self.poller.sample()
            if not values or _busy(values) <= self._at_rest:
                return
            await asyncio.sleep(0.1)

    def result(self, stopped_by: str, left_out: int) -> Measurement:
        """The measurement, once the load has ended."""
        records = self.load.records
        window = None if self.start_s is None else self._window(self.end_s)
        if self.start_s is None or window is None or len(window.completed) < 2:
            reason = no_window(
                stopped_by,
                warm=self.start_s is not None,
                arrived=None if self._closed else len(records),
                needed=OPEN_WARMUP_COMPLETIONS,
                replayed=self.replayed,
                max_s=self.limits.max_point_s,
            )
            raise PointFailedError(*reason, records)
        if (problem := unusable(window)) is not None:
            raise PointFailedError(*problem, records)
        throughput, e2e = intervals(window, closed=self._closed)
        return Measurement(
            window=window,
            errors=(throughput.half_width, e2e.half_width),
            stopped_by=stopped_by,
            warmup_s=self.start_s - self.begun_s,
            metrics=self.poller.between(window.start_s, window.end_s),
            lag_s=self.lag.between(window.start_s, window.end_s),
            records=records,
            left_out=left_out,
        )


def _busy(values: Mapping[str, float]) -> float:
    return values.get("running", 0.0) + values.get("waiting", 0.0)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``work`` beside the block."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
