"""The steady window of a point: what was completed in it, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from servefit.points import FloatArray
from servefit.profiling.record import Record

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]

#: Batch means: so many groups of consecutive completions at most; below the lower number there is
#: no interval.
GROUPS = 20
MIN_GROUPS = 4
CONFIDENCE = 0.95
#: Correlation of neighbouring groups is taken as at most this, and degrees of freedom as at least
#: this: with less of either an interval says nothing.
MAX_CORRELATION, MIN_FREEDOM = 0.9, 2.0
#: Groups are joined if so many remain; by this factor their interval may be wider by chance.
MIN_JOINED, CHANCE = 6, 1.4
#: An interval of fewer independent groups must be narrower by this factor to end a point.
ENOUGH_INDEPENDENT, MARGIN = 10.0, 2.0
#: Ends of a window whose `mismatch` differs by no more than this are equally good.
NEARLY = 0.001


class Requests:
    """Ended requests in the order of ending, their numbers also as arrays.

    A point is judged again and again while it runs: arrays that grow with it cost a few passes
    over numbers then, where reading every record anew would make the client late.
    """

    _COLUMNS = 6

    def __init__(self, records: Iterable[Record] = ()) -> None:
        """Of these, more can be added."""
        self._source: list[Record] = []
        self._positions: IntArray | None = None
        self._columns = np.empty((self._COLUMNS, 1024))
        for record in records:
            self.add(record)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._source) if self._positions is None else self._positions.size

    @property
    def records(self) -> list[Record]:
        """The requests."""
        if self._positions is None:
            return self._source
        return [self._source[i] for i in self._positions.tolist()]

    def add(self, record: Record) -> None:
        """Append a request that has ended."""
        n = len(self._source)
        if n == self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], axis=1)
        self._columns[:, n] = (
            _number(record.sent_s),
            _number(record.last_token_s),
            _number(record.finished_s),
            tokens_of(record),
            record.outcome == "completed" and not record.warmup,
            record.outcome == "failed",
        )
        self._source.append(record)

    def take(self, positions: IntArray) -> Requests:
        """Those at the given positions, in that order."""
        taken = Requests()
        taken._source, taken._columns = self._source, self._columns[:, positions]
        taken._positions = positions if self._positions is None else self._positions[positions]
        return taken

    def _column(self, i: int) -> FloatArray:
        return self._columns[i, : len(self)]

    @property
    def sent_s(self) -> FloatArray:
        """When each was sent; NaN: never."""
        return self._column(0)

    @property
    def last_token_s(self) -> FloatArray:
        """When its last token came; NaN: none."""
        return self._column(1)

    @property
    def finished_s(self) -> FloatArray:
        """When it ended."""
        return self._column(2)

    @property
    def tokens(self) -> FloatArray:
        """Input and output tokens, see `tokens_of`."""
        return self._column(3)

    @property
    def counted(self) -> BoolArray:
        """Whether it was completed and is no warm-up."""
        return self._column(4) > 0

    @property
    def failed(self) -> BoolArray:
        """Whether it failed."""
        return self._column(5) > 0


@dataclass(frozen=True)
class Window:
    """Requests of a steady window.

    Attributes:
        start_s, end_s: the window; it starts and ends with a completion, so that the number of
            completions in it over its length is the rate without an edge effect.
        completed: requests whose last token arrived in (start, end], by that time.
        failed: requests that failed in it.
        in_flight: time average of requests sent and not ended.
        growth: in-flight mean of the second half minus that of the first.
        paused: time average of slots of a closed loop that paused after a failure.
    """

    start_s: float
    end_s: float
    completed: Requests
    failed: Requests
    in_flight: float
    growth: float
    paused: float = 0.0

    @property
    def duration_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s

    @property
    def paused_share(self) -> float:
        """Share of the load that was asked for and not held, by pauses after failures."""
        return self.paused / (self.paused + self.in_flight) if self.paused else 0.0


def steady_window(
    ended: Requests,
    start_s: float,
    end_s: float,
    *,
    closed: bool,
    running: Iterable[Record] = (),
) -> Window | None:
    """The window from ``start_s`` to a completion before ``end_s``; ``None`` without completions.

    Requests of equal length tend to run in clumps that end together, and a window that holds k and
    a half periods of them counts too many or too few. In a closed loop the window therefore ends
    at that one of the last completions, one for each request in flight, where completions over
    time and Little's law agree best (`mismatch`). Warm-up requests are not counted as completed.

    Args:
        ended: requests that have ended, however.
        start_s, end_s: when the load became steady, and now.
        closed: whether the load is a closed loop.
        running: requests that have not ended.
    """
    last_s = ended.last_token_s
    inside = np.flatnonzero(ended.counted & (last_s > start_s) & (last_s <= end_s))
    completed = ended.take(inside[np.argsort(last_s[inside], kind="stable")])
    if not completed:
        return None
    waiting = np.array([r.sent_s for r in running if r.sent_s is not None], dtype=np.float64)
    sent_s = np.concatenate([ended.sent_s, waiting])
    finished_s = np.concatenate([ended.finished_s, np.full(waiting.size, np.inf)])
    if closed:
        in_flight = time_average(sent_s, finished_s, start_s, completed.last_token_s[-1])
        gaps = np.abs(mismatch(completed, start_s, in_flight))
        last = len(gaps) - max(1, min(round(in_flight), 3 * len(gaps) // 4))
        best = np.flatnonzero(gaps[last:] <= gaps[last:].min() + NEARLY)[-1]
        completed = completed.take(np.arange(last + int(best) + 1))
    end_s = float(completed.last_token_s[-1])
    half_s = (start_s + end_s) / 2
    halves = [
        time_average(sent_s, finished_s, *half) for half in ((start_s, half_s), (half_s, end_s))
    ]
    failed = ended.take(np.flatnonzero(ended.failed))
    then_s = failed.finished_s
    pauses_s = np.array([r.pause_s for r in failed.records], dtype=np.float64)
    return Window(
        start_s=start_s,
        end_s=end_s,
        completed=completed,
        failed=failed.take(np.flatnonzero((then_s > start_s) & (then_s <= end_s))),
        in_flight=sum(halves) / 2,
        growth=halves[1] - halves[0],
        paused=time_average(then_s, then_s + pauses_s, start_s, end_s),
    )


def mismatch(completed: Requests, start_s: float, in_flight: float) -> FloatArray:
    """By how much completions over time exceed Little's law, relative, up to each completion.

    The rate is k / (t_k - start) by counting, and L / W by Little's law, with L requests in flight
    and W the mean time that the k requests were.
    """
    stays_s = np.cumsum(completed.finished_s - completed.sent_s)
    excess: FloatArray = stays_s / (in_flight * (completed.last_token_s - start_s)) - 1
    return excess


def time_average(begun_s: FloatArray, ended_s: FloatArray, start_s: float, end_s: float) -> float:
    """Mean over [start, end] of the number of intervals [begun, ended] at a time.

    One that never began (NaN) is none. NaN for an empty window.
    """
    if end_s <= start_s:
        return math.nan
    inside_s = np.minimum(ended_s, end_s) - np.maximum(begun_s, start_s)
    return float(np.nansum(np.maximum(inside_s, 0.0))) / (end_s - start_s)


def tokens_of(record: Record) -> int:
    """Input and output tokens; what the server did not count is taken as asked."""
    asked = record.ask
    counted = record.input_tokens, record.output_tokens
    return (asked.input_tokens if counted[0] is None else counted[0]) + (
        asked.output_tokens if counted[1] is None else counted[1]
    )


@dataclass(frozen=True)
class Interval:
    """The 95 % interval of a mean.

    Attributes:
        half_width: relative to the mean; infinity: unknown.
        independent: so many independent samples say as much as those that it comes from.
    """

    half_width: float = math.inf
    independent: float = 0.0

    def known_within(self, rel_err: float) -> bool:
        """Whether a measurement may end because of it.

        An interval of few independent samples is itself uncertain, and who looks again and again
        meets it when it is narrow by luck: it must be narrower by `MARGIN`.
        """
        margin = 1.0 if self.independent >= ENOUGH_INDEPENDENT else MARGIN
        return self.half_width * margin <= rel_err

    def widened(self, by: float) -> Interval:
        """With a larger half width."""
        return replace(self, half_width=self.half_width + by)


def intervals(window: Window, *, closed: bool) -> tuple[Interval, Interval]:
    """Those of throughput and of mean E2E, see `interval`.

    By batch means: completions are cut into up to `GROUPS` groups of consecutive ones. A group's
    throughput is its tokens over the time since the end of the group before; in a closed loop that
    was held its tokens over the time that its requests were in flight, to which throughput is
    proportional by Little's law and which clumps do not disturb. There the `mismatch` of the window
    is added. Where slots paused, the share of the load that they left out is added to both: the
    row is about a load that was not there all the time.

    Returns:
        Unknown ones where there are fewer than `MIN_GROUPS` groups.
    """
    completed = window.completed
    size = math.ceil(len(completed) / GROUPS)
    groups = len(completed) // size
    if groups < MIN_GROUPS:
        return Interval(), Interval()

    def by_group(values: FloatArray) -> FloatArray:
        return values[: groups * size].reshape(groups, size)

    tokens = by_group(completed.tokens).sum(axis=1)
    e2e_s = by_group(completed.last_token_s - completed.sent_s).mean(axis=1)
    if closed and not window.paused:
        times = by_group(completed.finished_s - completed.sent_s).sum(axis=1)
        edge = abs(float(mismatch(completed, window.start_s, window.in_flight)[-1]))
    else:
        ends = by_group(completed.last_token_s)[:, -1]
        times, edge = np.diff(ends, prepend=window.start_s), 0.0
        if not (times > 0).all():  # a whole group in one burst: wait for larger groups
            return Interval(), Interval()
    left_out = window.paused_share
    return (
        interval(tokens / times).widened(edge + left_out),
        interval(e2e_s).widened(left_out),
    )


def interval(means: FloatArray) -> Interval:
    """The Student interval of the mean of batch means that may be correlated.

    As for a first-order autoregression: n means with lag-1 autocorrelation r are worth
    n' = n (1 - r)/(1 + r) independent ones, and the variance of their mean is s^2/n'. The estimate
    of r from n means is low by (1 + 3r)/n (Marriott and Pope 1954; Kendall 1954), which is put
    right; below 0 it is 0. Student's quantile is that of n' - 1 degrees of freedom, at least
    `MIN_FREEDOM`. Noise that is slow but hidden in faster noise shows in longer groups only:
    neighbours are joined, and where their interval is wider by more than `CHANCE`, it is taken.
    """
    fine = _student(means)
    if means.size < 2 * MIN_JOINED:
        return fine
    joined = means[: means.size // 2 * 2].reshape(-1, 2).mean(axis=1)
    coarse = _student(joined)
    return coarse if coarse.half_width > CHANCE * fine.half_width else fine


def _student(means: FloatArray) -> Interval:
    n, mean = means.size, float(means.mean())
    deviations = means - mean
    squares = float(deviations @ deviations)
    if squares <= 1e-24 * mean * mean:
        return Interval(0.0, n)
    r = float(deviations[1:] @ deviations[:-1]) / squares
    r = min(max(0.0, r + (1 + 3 * r) / n), MAX_CORRELATION)
    independent = n * (1 - r) / (1 + r)
    freedom = max(independent - 1, min(n - 1, MIN_FREEDOM))
    quantile = float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return Interval(quantile * math.sqrt(squares / (n - 1) / independent) / mean, independent)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
