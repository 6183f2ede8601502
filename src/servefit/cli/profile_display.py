"""What a campaign shows while it runs, on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from servefit.profiling.plan import Point
from servefit.profiling.server import Server


class ConsoleDisplay:
    """A line per point; on a terminal also a bar with the time left.

    The bar is drawn twice a second only: drawing takes time from the client that is measuring.

    Args:
        console: where to.
        most: most points that can come, where they are chosen one after the other.
    """

    def __init__(self, console: Console, most: int | None = None) -> None:
        """Nothing is drawn yet; see `live`."""
        self._console, self._most = console, most
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            refresh_per_second=2,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=most, left="")
        self._left: dict[Point, float] = {}
        self._point: Point | None = None
        self._done_cost = self._done_s = self._begun_s = 0.0
        self._rows = 0

    @contextmanager
    def live(self) -> Iterator[None]:
        """Draw while the block runs."""
        with self._progress:
            yield

    def begin(self, points: Sequence[Point], done: Sequence[Point]) -> None:
        """These points are planned; so many of them are known to be measured already."""
        self._left = {p: p.relative_cost for p in points if p not in set(done)}
        self._progress.update(self._task, total=sum(self._left.values()))
        count = "1 point" if len(points) == 1 else f"{len(points)} points"
        self.say(count + (f", {len(done)} measured before" if done else ""))

    def server(self, server: Server) -> None:
        """A server was found."""
        what = [server.model]
        engine = [server.engine or "engine unknown", str(server.settings.get("engine_version", ""))]
        what.append(" ".join(engine).strip())
        if capacity := server.settings.get("kv_capacity_tokens"):
            what.append(f"KV cache of {capacity:,} tokens")
        if server.seats:
            what.append(f"{server.seats} seats")
        what.append("token-id prompts" if server.token_ids else "text prompts")
        self.say(f"server: {', '.join(what)}")
        if server.unknown:
            self.say(f"not told by the server: {', '.join(server.unknown.values())}")
        for note in server.notes:
            self.say(f"note: {note}")

    def skip(self, point: Point) -> None:
        """The point is in the file already."""
        self.say(f"{point.label}: measured before")
        self._advance(point)

    def point(self, point: Point) -> None:
        """A point begins."""
        self._point, self._begun_s = point, time.perf_counter()
        self.progress("starting")

    def progress(self, text: str) -> None:
        """How far the point is."""
        description = f"{self._point.label}: {text}" if self._point else text
        self._progress.update(self._task, description=description, left=self._time_left())

    def retry(self, point: Point, reason: str) -> None:
        """The point failed and is tried again."""
        self.say(f"{point.label}: {reason}; trying again")

    def row(self, point: Point, row: Mapping[str, Any]) -> None:
        """The point's row is in the file."""
        self._rows += 1
        self._done_s += time.perf_counter() - self._begun_s
        self._done_cost += point.relative_cost
        if row["status"] == "ok":
            error = row["total_tokens_per_s_rel_err"]
            text = f"{row['total_tokens_per_s']:,.1f} tokens/s"
            text += f" ±{error:.1%}" if error is not None else ""
            text += f", E2E {row['e2e_with_queue_mean_s']:.3g} s in {row['duration_s']:.0f} s"
            text += f" [{row['flags']}]" if row["flags"] else ""
        else:
            text = f"FAILED: {row['error_detail']}"
        self.say(f"{point.label}: {text}")
        self._advance(point)

    def _advance(self, point: Point) -> None:
        cost = self._left.pop(point, 1.0 if self._most else 0.0)
        self._point = None
        self._progress.update(self._task, advance=cost, left=self._time_left())

    def _time_left(self) -> str:
        """By the cost of what is left, or its number, at the pace so far."""
        if not self._rows or not (self._left or self._most):
            return ""
        if self._most:
            pace, words = self._done_s / self._rows, "at most about"
            this, others = 1.0, max(0.0, self._most - self._rows - 1.0)
        else:
            pace, words = self._done_s / self._done_cost, "about"
            this = self._left.get(self._point, 0.0) if self._point else 0.0
            others = sum(self._left.values()) - this
        spent_s = time.perf_counter() - self._begun_s if self._point else 0.0
        seconds = pace * others + max(0.0, pace * this - spent_s)
        left = f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
        return f"{words} {left} left"

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(Text(text), soft_wrap=True)
