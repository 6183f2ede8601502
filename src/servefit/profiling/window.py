"""The steady window of a point: what was completed in it, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from servefit.points import FloatArray
from servefit.profiling.record import Record

#: Batch means: so many groups of consecutive completions at most; below the lower number there is
#: no interval.
GROUPS = 20
MIN_GROUPS = 4
CONFIDENCE = 0.95


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
    """

    start_s: float
    end_s: float
    completed: Sequence[Record]
    failed: Sequence[Record]
    in_flight: float
    growth: float

    @property
    def duration_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s


def steady_window(records: Sequence[Record], start_s: float, end_s: float) -> Window | None:
    """The window from ``start_s`` to the last completion before ``end_s``; ``None`` if there is
    no completion. Warm-up requests are not counted as completed."""
    completed = completions(records, start_s, end_s)
    if not completed:
        return None
    last = completed[-1].last_token_s
    assert last is not None
    half = (start_s + last) / 2
    failed = [
        r
        for r in records
        if r.outcome == "failed" and r.finished_s is not None and start_s < r.finished_s <= last
    ]
    return Window(
        start_s=start_s,
        end_s=last,
        completed=completed,
        failed=failed,
        in_flight=in_flight_mean(records, start_s, last),
        growth=in_flight_mean(records, half, last) - in_flight_mean(records, start_s, half),
    )


def completions(records: Sequence[Record], start_s: float, end_s: float) -> list[Record]:
    """Requests completed in (start, end], by the time of their last token."""
    found = [
        (r.last_token_s, i)
        for i, r in enumerate(records)
        if r.outcome == "completed"
        and not r.warmup
        and r.last_token_s is not None
        and start_s < r.last_token_s <= end_s
    ]
    return [records[i] for _, i in sorted(found)]


def in_flight_mean(records: Sequence[Record], start_s: float, end_s: float) -> float:
    """Time average over [start, end] of requests sent and not ended."""
    if end_s <= start_s:
        return math.nan
    busy_s = 0.0
    for r in records:
        if r.sent_s is not None:
            ended_s = end_s if r.finished_s is None else r.finished_s
            busy_s += max(0.0, min(ended_s, end_s) - max(r.sent_s, start_s))
    return busy_s / (end_s - start_s)


def tokens_of(record: Record) -> int:
    """Input and output tokens; what the server did not count is taken as asked."""
    asked = record.ask
    counted = record.input_tokens, record.output_tokens
    return (asked.input_tokens if counted[0] is None else counted[0]) + (
        asked.output_tokens if counted[1] is None else counted[1]
    )


def relative_errors(completed: Sequence[Record], start_s: float) -> tuple[float, float]:
    """Half widths of the 95 % intervals of throughput and of mean E2E, relative to their values.

    By batch means: completions are cut into up to `GROUPS` groups of consecutive ones; a group's
    throughput is its tokens over the time since the end of the group before.

    Returns:
        Infinity for both where there are fewer than `MIN_GROUPS` groups.
    """
    n = len(completed)
    size = math.ceil(n / GROUPS) if n else 1
    groups = n // size
    if groups < MIN_GROUPS:
        return math.inf, math.inf
    used = completed[: groups * size]
    ends = np.array([r.last_token_s for r in used], dtype=np.float64)[size - 1 :: size]
    times = np.diff(ends, prepend=start_s)
    if not (times > 0).all():  # a whole group in one burst: wait for larger groups
        return math.inf, math.inf
    tokens = np.array([tokens_of(r) for r in used], dtype=np.float64).reshape(groups, size)
    e2e_s = np.array([r.e2e_s for r in used], dtype=np.float64).reshape(groups, size)
    return relative_half_width(tokens.sum(axis=1) / times), relative_half_width(e2e_s.mean(axis=1))


def relative_half_width(means: FloatArray) -> float:
    """Half width of the Student interval of the mean of batch means, relative to the mean.

    The variance is widened by (1 + r)/(1 - r), with r the lag-1 autocorrelation of the batch means
    (as for a first-order autoregression), where r is positive: correlated batches say less.
    """
    from scipy.special import stdtrit

    n, mean = means.size, float(means.mean())
    deviations = means - mean
    variance = float(deviations @ deviations)
    if variance <= 1e-24 * mean * mean:
        return 0.0
    r = min(max(0.0, float(deviations[1:] @ deviations[:-1]) / variance), 0.9)
    standard_error = math.sqrt(variance / (n - 1) / n * (1 + r) / (1 - r))
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return quantile * standard_error / mean
