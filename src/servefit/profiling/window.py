"""The steady window of a point: what was completed in it, and how well that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from servefit.points import FloatArray
from servefit.profiling.record import Record

#: Batch means: so many groups of consecutive completions at most; below the lower number there is
#: no interval.
GROUPS = 20
MIN_GROUPS = 4
CONFIDENCE = 0.95
#: Ends of a window whose `mismatch` differs by no more than this are equally good.
NEARLY = 0.001


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


def steady_window(
    records: Sequence[Record], start_s: float, end_s: float, *, closed: bool
) -> Window | None:
    """The window from ``start_s`` to a completion before ``end_s``; ``None`` without completions.

    Requests of equal length tend to run in clumps that end together, and a window that holds k and
    a half periods of them counts too many or too few. In a closed loop the window therefore ends
    at that one of the last completions, one for each request in flight, where completions over
    time and Little's law agree best (`mismatch`). Warm-up requests are not counted as completed.
    """
    completed = completions(records, start_s, end_s)
    if not completed:
        return None
    if closed:
        in_flight = in_flight_mean(records, start_s, _end_s(completed))
        gaps = np.abs(mismatch(completed, start_s, in_flight))
        last = len(gaps) - max(1, min(round(in_flight), 3 * len(gaps) // 4))
        best = np.flatnonzero(gaps[last:] <= gaps[last:].min() + NEARLY)[-1]
        completed = completed[: last + int(best) + 1]
    end_s = _end_s(completed)
    half_s = (start_s + end_s) / 2
    failed = [
        r
        for r in records
        if r.outcome == "failed" and r.finished_s is not None and start_s < r.finished_s <= end_s
    ]
    return Window(
        start_s=start_s,
        end_s=end_s,
        completed=completed,
        failed=failed,
        in_flight=in_flight_mean(records, start_s, end_s),
        growth=in_flight_mean(records, half_s, end_s) - in_flight_mean(records, start_s, half_s),
    )


def _end_s(completed: Sequence[Record]) -> float:
    last = completed[-1].last_token_s
    assert last is not None  # `completions` takes no others
    return last


def mismatch(completed: Sequence[Record], start_s: float, in_flight: float) -> FloatArray:
    """By how much completions over time exceed Little's law, relative, up to each completion.

    The rate is k / (t_k - start) by counting, and L / W by Little's law, with L requests in flight
    and W the mean time that the k requests were.
    """
    ends = np.array([r.last_token_s for r in completed], dtype=np.float64)
    stays = np.array([_stay_s(r) for r in completed], dtype=np.float64)
    mismatch: FloatArray = np.cumsum(stays) / (in_flight * (ends - start_s)) - 1
    return mismatch


def _stay_s(record: Record) -> float:
    """How long a request was in flight."""
    assert record.sent_s is not None
    assert record.finished_s is not None
    return record.finished_s - record.sent_s


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


def relative_errors(window: Window, *, closed: bool) -> tuple[float, float]:
    """Half widths of the 95 % intervals of throughput and of mean E2E, relative to their values.

    By batch means: completions are cut into up to `GROUPS` groups of consecutive ones. A group's
    throughput is its tokens over the time since the end of the group before; in a closed loop its
    tokens over the time that its requests were in flight, to which throughput is proportional by
    Little's law and which clumps do not disturb. There the `mismatch` of the window is added.

    Returns:
        Infinity for both where there are fewer than `MIN_GROUPS` groups.
    """
    completed = window.completed
    size = math.ceil(len(completed) / GROUPS)
    groups = len(completed) // size
    if groups < MIN_GROUPS:
        return math.inf, math.inf

    def by_group(values: list[float]) -> FloatArray:
        return np.array(values[: groups * size], dtype=np.float64).reshape(groups, size)

    tokens = by_group([tokens_of(r) for r in completed]).sum(axis=1)
    e2e_s = by_group([r.e2e_s or math.nan for r in completed]).mean(axis=1)
    if closed:
        times = by_group([_stay_s(r) for r in completed]).sum(axis=1)
        edge = abs(float(mismatch(completed, window.start_s, window.in_flight)[-1]))
    else:
        ends = by_group([r.last_token_s or math.nan for r in completed])[:, -1]
        times, edge = np.diff(ends, prepend=window.start_s), 0.0
        if not (times > 0).all():  # a whole group in one burst: wait for larger groups
            return math.inf, math.inf
    return relative_half_width(tokens / times) + edge, relative_half_width(e2e_s)


def relative_half_width(means: FloatArray) -> float:
    """Half width of the Student interval of the mean of batch means, relative to the mean.

    The variance is widened by (1 + r)/(1 - r), with r the lag-1 autocorrelation of the batch means
    (as for a first-order autoregression), where r is positive: correlated batches say less.
    """
    n, mean = means.size, float(means.mean())
    deviations = means - mean
    variance = float(deviations @ deviations)
    if variance <= 1e-24 * mean * mean:
        return 0.0
    r = min(max(0.0, float(deviations[1:] @ deviations[:-1]) / variance), 0.9)
    standard_error = math.sqrt(variance / (n - 1) / n * (1 + r) / (1 - r))
    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return quantile * standard_error / mean
