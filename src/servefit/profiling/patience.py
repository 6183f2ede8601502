"""Asking again where a failure may pass: the server is busy, restarts, or a connection was cut."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from servefit.errors import ServefitError
from servefit.profiling.client import PATHS, Client
from servefit.profiling.record import Ask, Record
from servefit.profiling.replies import Reply
from servefit.profiling.server import Server

#: Time that failures before the first point may cost in all: failed attempts and pauses.
PATIENCE_S = 120.0
#: The same until the server has answered for the first time: nobody may be there.
STRANGER_PATIENCE_S = 3.0
#: The same, by the clock, for all pages together that a server may do without.
OPTIONAL_PATIENCE_S = 10.0
#: Pauses double from the first to the longest; ``Retry-After`` makes them longer.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
#: A tiny request that has no answer for so long is not asked again: the server hangs.
ANSWER_TIMEOUT_S = 120.0
#: Failures that may pass, besides the statuses of `passes`.
PASSING = ("connect", "cut", "timeout", "protocol", "bad_json", "error_event")

T = TypeVar("T")


class OutOfTimeError(Exception):
    """The time of the whole campaign ended before the server was ready."""


def passes(status: int) -> bool:
    """Whether an HTTP status may be another one a moment later."""
    return status in (408, 425, 429) or (status >= 500 and status not in (501, 505))


@dataclass(frozen=True)
class Trouble:
    """A failure that may pass: in words, and the pause that the server asked for."""

    reason: str
    retry_after_s: float | None = None


@dataclass
class Patience:
    """Asks a server, and again while a failure may pass and patience lasts.

    Attributes:
        client: connections to the server.
        give_up_s: when to stop asking again, by ``time.perf_counter``.
        report: told why it waits.
        alive: whether the server, if we launched it, still runs.
        allowed_s: time that failures may cost.
    """

    client: Client
    give_up_s: float = math.inf
    report: Callable[[str], None] = lambda text: None
    alive: Callable[[], bool] = lambda: True
    allowed_s: float = field(default_factory=lambda: PATIENCE_S)
    _lost_s: float = 0.0
    _met: bool = False
    _optional: bool = False
    _optional_until_s: list[float] = field(default_factory=list)  # shared by those pages

    async def query(self, path: str, data: Any = None) -> Reply | None:
        """As `Client.query`; the last answer, where patience ends.

        Raises:
            OutOfTimeError: ``give_up_s`` comes while the server is still busy.
        """

        async def attempt() -> Reply | None:
            return await self.client.query(path, data)

        def trouble_of(reply: Reply | None) -> Trouble | None:
            if reply is None:
                kind = self.client.failure.partition(":")[0]
                return Trouble(self.client.failure) if kind in PASSING else None
            if not passes(reply.status):
                return None
            return Trouble(f"HTTP {reply.status}", reply.retry_after_s)

        return await self._until(path, attempt, trouble_of)

    async def optional(self, path: str, data: Any = None) -> Reply | None:
        """As `query`, of a page that the server may do without; says but once that it waits.

        All such pages share `OPTIONAL_PATIENCE_S` from the first that fails: a proxy may fail at
        every page that its server does not have.
        """
        said: list[str] = []

        def report(text: str) -> None:
            if not said:
                self.report(text)
            said.append(text)

        patient = replace(self, report=report, _optional=True)
        return await patient.query(path, data)

    async def generate(self, server: Server, prompt_json: str, ask: Ask) -> Record:
        """As `Client.generate`; the record of the last attempt.

        Raises:
            ServefitError: the server hangs, see `ANSWER_TIMEOUT_S`.
            OutOfTimeError: as `query`.
        """
        body = server.body(prompt_json, ask)

        async def attempt() -> Record:
            record = Record(ask, 0.0)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self.client.generate(server.endpoint, body, record)
            except TimeoutError:
                raise ServefitError(
                    f"{self.client.url}: no answer to a tiny request within {ANSWER_TIMEOUT_S:g} "
                    "s: the server hangs"
                ) from None
            return record

        def trouble_of(record: Record) -> Trouble | None:
            kind = record.error or ""
            status = kind.removeprefix("http_")
            if kind in PASSING or (status.isdecimal() and passes(int(status))):
                return Trouble(f"{kind}: {record.detail}", record.retry_after_s)
            return None

        return await self._until(PATHS[server.endpoint], attempt, trouble_of)

    def _spent(self, now_s: float, allowed_s: float) -> bool:
        """Whether patience, at ``now_s``, is at its end."""
        if not self._optional:
            return self._lost_s > allowed_s
        if not self._optional_until_s:
            self._optional_until_s.append(time.perf_counter() + OPTIONAL_PATIENCE_S)
        return now_s > self._optional_until_s[0]

    async def _until(
        self,
        path: str,
        attempt: Callable[[], Awaitable[T]],
        trouble_of: Callable[[T], Trouble | None],
    ) -> T:
        """The first result without trouble, or the last one before patience ends."""
        pause_s = FIRST_PAUSE_S
        while True:
            begun_s = time.perf_counter()
            result = await attempt()
            trouble = trouble_of(result)
            if trouble is None:
                self._met = True
                return result
            self._met |= not trouble.reason.startswith("connect")
            wait_s = max(pause_s, trouble.retry_after_s or 0.0)
            now_s = time.perf_counter()
            self._lost_s += now_s - begun_s + wait_s
            allowed_s = self.allowed_s if self._met else min(self.allowed_s, STRANGER_PATIENCE_S)
            if self._spent(now_s + wait_s, allowed_s) or not self.alive():
                return result
            if now_s + wait_s > self.give_up_s:
                if self._met:
                    raise OutOfTimeError
                return result
            self.report(f"{path}: {trouble.reason}; asking again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
