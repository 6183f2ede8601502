"""A campaign: every point of a plan, into one file, within a bounded time."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import servefit
from servefit.errors import ServefitError
from servefit.profiling.journal import Journal
from servefit.profiling.launch import LaunchFailedError
from servefit.profiling.lengths import read_trace
from servefit.profiling.measure import Limits, PointFailedError, measure
from servefit.profiling.patience import OutOfTimeError
from servefit.profiling.plan import Point, in_order
from servefit.profiling.record import Record
from servefit.profiling.rows import failure_row, measured_row
from servefit.profiling.server import Server
from servefit.profiling.session import Session, Settings, Target, open_session
from servefit.runs.schema import SCHEMA_VERSION

#: Pause before the first retry of a point; doubled for each further one.
RETRY_PAUSE_S = 2.0
#: Failures that another attempt meets again.
UNCHANGING = ("too_few_arrivals",)
#: The last point may take so much longer than the campaign's time to wind down.
GRACE_S = 60.0


@dataclass(frozen=True)
class Options:
    """How a campaign is run.

    Attributes:
        limits: when a point ends.
        max_time_s: when the whole campaign ends.
        retries: how often a failed point is tried again.
        seed: of lengths and arrivals; the contents of prompts are never repeated.
        name: the campaign's name in its rows.
        requests_dir: folder for one file of requests a point.
    """

    limits: Limits = field(default_factory=Limits)
    max_time_s: float = 3600.0
    retries: int = 2
    seed: int = 0
    name: str = "profile"
    requests_dir: Path | None = None


class Display(Protocol):
    """What a campaign tells while it runs."""

    def begin(self, points: Sequence[Point], done: Sequence[Point]) -> None:
        """These points are planned; so many of them are known to be measured already."""

    def server(self, server: Server) -> None:
        """A server was found."""

    def skip(self, point: Point) -> None:
        """The point is in the file already."""

    def point(self, point: Point) -> None:
        """A point begins."""

    def progress(self, text: str) -> None:
        """How far the point is."""

    def say(self, text: str) -> None:
        """What is waited for."""

    def retry(self, point: Point, reason: str) -> None:
        """The point failed and is tried again."""

    def row(self, point: Point, row: Mapping[str, Any]) -> None:
        """The point's row is in the file."""


#: Names the next point to measure, given the server, its identity in the keys of points, and every
#: row so far; ``None``: enough.
Chooser = Callable[[Server, str, Sequence[Mapping[str, Any]]], Point | None]


@dataclass
class Campaign:
    """Measures points one after the other and appends a row for each to the journal.

    Attributes:
        target, journal, options, display: see there.
        out_of_time: it ended before it was through.
        missing: points that were then left for the next run, as far as they were named.
        give_up_s: when it will end, by ``time.perf_counter``.
    """

    target: Target
    journal: Journal
    options: Options
    display: Display
    out_of_time: bool = False
    missing: Sequence[Point] = ()
    give_up_s: float = math.inf
    _whom: dict[Settings, str] = field(default_factory=dict)
    _tried: set[Point] = field(default_factory=set)

    async def run(self, points: Sequence[Point]) -> list[dict[str, Any]]:
        """Measure what the journal lacks of ``points``; returns the rows added.

        Whatever the servers do, it ends within ``max_time_s`` and `GRACE_S`; what is then not yet
        measured is left for the next run.

        Raises:
            ServefitError: the server is not there, or the journal cannot be written.
        """
        for trace in {p.trace for p in points if p.trace is not None}:
            read_trace(trace)  # refused now rather than after the first points
        ordered = in_order(points)
        groups = [list(g) for _, g in itertools.groupby(ordered, key=lambda p: p.settings)]
        for group in groups:
            self.target.refuse_unused(group[0].settings)
        if self.target.launch is not None:
            groups = [g for g in groups if self._missing(g, self.target.identity())]

        async def work() -> None:
            for group in groups:
                try:
                    await self._group(group[0].settings, _each(group))
                except LaunchFailedError as failure:
                    self._launch_failed(group, failure)

        done = [p for p in ordered if p not in set(itertools.chain(*groups))]
        self.display.begin(ordered, done)
        rows = await self._within_time(work())
        if self.out_of_time:
            unknown = self.target.identity()
            left = [p for p in ordered if p not in self._tried]
            self.missing = [
                p for p in left if self._missing([p], self._whom.get(p.settings, unknown))
            ]
            self.out_of_time = bool(self.missing)  # not if its time ended with its last point
        return rows

    async def run_adaptively(
        self, choose: Chooser, settings: tuple[tuple[str, str], ...] = ()
    ) -> list[dict[str, Any]]:
        """Measure the points that ``choose`` names, each after seeing the rows so far; as `run`.

        Raises:
            ServefitError: as `run`; the server does not start.
        """
        try:
            rows = await self._within_time(self._group(settings, choose))
        except LaunchFailedError as failure:
            raise ServefitError(f"--launch: {failure}") from None
        if not self.out_of_time:
            self.missing = ()
        return rows

    async def _within_time(self, work: Coroutine[Any, Any, None]) -> list[dict[str, Any]]:
        before = len(self.journal.rows)
        self.give_up_s = time.perf_counter() + self.options.max_time_s
        try:
            async with asyncio.timeout(self.options.max_time_s + GRACE_S):
                await work
        except TimeoutError:
            self.out_of_time = True
        return self.journal.rows[before:]

    @property
    def remaining_s(self) -> float:
        """Time left of ``max_time_s``."""
        return max(0.0, self.give_up_s - time.perf_counter())

    def _missing(self, points: Iterable[Point], whom: str) -> list[Point]:
        """Those of the points that no row has a result for."""
        return [p for p in points if p.key(whom) not in self.journal.measured]

    async def _group(self, settings: Settings, choose: Chooser) -> None:
        """Points of one server setting; the server is launched again if it dies.

        Raises:
            LaunchFailedError: it does not start.
        """
        point: Point | None = None
        attempt = 0
        while self.remaining_s > 0:
            try:
                async with open_session(
                    self.target,
                    settings,
                    stem=self.journal.path,
                    give_up_s=self.give_up_s,
                    report=self.display.say,
                ) as session:
                    self.display.server(session.server)
                    whom = self._whom[settings] = self.target.identity(session.server)
                    while True:
                        if point is None:
                            point, attempt = choose(session.server, whom, self.journal.rows), 0
                        if point is None:
                            return
                        if not self._missing([point], whom):
                            self.display.skip(point)
                            point = None
                            continue
                        self.missing = [point]
                        if self.remaining_s == 0 or not session.alive():
                            break
                        if await self._attempt(session, point, attempt):
                            point = None
                        else:
                            attempt += 1
            except OutOfTimeError:
                break
        self.out_of_time = True

    def _launch_failed(self, points: Iterable[Point], failure: LaunchFailedError) -> None:
        """Record for what is left of one setting's points that its server does not start."""
        for point in points:
            known = self.target.row_settings(point.settings)
            server = Server(self.target.model or "", settings=known)
            missing = self._missing([point], self.target.identity(server))
            if missing and point not in self._tried:
                failed = PointFailedError("launch", str(failure), [])
                self._append(point, server, failure_row(point, server, failed))

    async def _attempt(self, session: Session, point: Point, attempt: int) -> bool:
        """Measure a point once; whether that settles it, by a row, or it is to be tried again."""
        self.display.point(point)
        key = point.key(self.target.identity(session.server))
        limits = self.options.limits
        limits = replace(limits, max_point_s=min(limits.max_point_s, self.remaining_s))
        failure: PointFailedError | None = None
        retries = self.options.retries
        try:
            result = await measure(
                session.client,
                session.server,
                session.prompts,
                point,
                limits,
                seed=random.Random(f"{self.options.seed} {point.key('')} {attempt}").getrandbits(
                    32
                ),
                report=self.display.progress,
            )
        except PointFailedError as error:
            failure = error
            if error.kind in UNCHANGING:
                retries = 0
        except ServefitError as error:  # more than the server can do, whenever it is asked
            failure = PointFailedError("impossible", str(error), [])
            retries = 0
        if self.remaining_s == 0 and (failure or result.stopped_by == "time"):
            return False  # cut off by the campaign's end: left for the next run
        pause_s = RETRY_PAUSE_S * 2**attempt
        if failure and attempt < retries and pause_s < self.remaining_s:
            self.display.retry(point, str(failure))
            await asyncio.sleep(pause_s)
            return False
        if failure:
            row = failure_row(point, session.server, failure)
        else:
            row = measured_row(point, session.server, result)
        self._append(point, session.server, {**row, "attempts": attempt + 1})
        self._save_requests(key, failure.records if failure else result.records)
        return True

    def _append(self, point: Point, server: Server, row: dict[str, Any]) -> None:
        row = {
            "schema_version": SCHEMA_VERSION,
            **row,
            "campaign": self.options.name,
            "point_id": point.key(self.target.identity(server)),
            "seed": self.options.seed,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "servefit_version": servefit.__version__,
        }
        self.journal.append(row)
        self._tried.add(point)
        self.display.row(point, row)

    def _save_requests(self, key: str, records: Sequence[Record]) -> None:
        folder = self.options.requests_dir
        if folder is None:
            return
        path = folder / f"{key}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(record.as_dict()) + "\n" for record in records)
        except OSError as error:
            raise ServefitError(f"{path}: cannot be written ({error.strerror})") from None


def _each(points: Iterable[Point]) -> Chooser:
    """Chooses the points in turn."""
    left = iter(points)
    return lambda server, whom, rows: next(left, None)
