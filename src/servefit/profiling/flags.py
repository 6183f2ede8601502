"""What a reader of a row must know: each flag a name, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from servefit.profiling.lag import mean_wait_s
from servefit.profiling.measure import Measurement
from servefit.profiling.plan import Point
from servefit.profiling.record import Record
from servefit.profiling.window import tokens_of

#: A request sent so much after its time is late; the event loop's own timers are exact to 1 ms.
LATE_S = 0.005
#: The client limits the point if so large a share of the sends is late, or all of them are late by
#: so large a share of the mean E2E on average;
MAX_LATE_SHARE = 0.02
#: if its event loop is late by this share of the mean time between tokens 1 % of the time;
MAX_LAG_SHARE, MIN_LAG_S = 0.1, 0.003
#: or if what arrives at a random time waits for it by this share of the mean TTFT on average.
MAX_WAIT_SHARE, MIN_WAIT_S = 0.02, 0.0005
#: A larger share of prompt tokens found in a prefix cache makes prefill look faster than it is.
MAX_CACHED_SHARE = 0.02
#: With more than this share of the tokens after the first at the first one's time, TPOT is low.
MAX_TPOT_SHARE = 0.02
#: A closed loop whose mean load is below this share of what was asked measured another load.
MIN_HELD_SHARE = 0.95
#: Client and server disagree on the tokens per second beyond this relative difference, and beyond
#: what the time of the server's answers leaves open.
MAX_TOKEN_DIFFERENCE = 0.1


def lateness_s(m: Measurement) -> list[float]:
    """By how much each request that was due in the window was sent after its time."""
    start_s, end_s = m.window.start_s, m.window.end_s
    return [
        r.sent_s - r.scheduled_s
        for r in m.records
        if r.sent_s is not None and start_s <= r.scheduled_s <= end_s
    ]


def flags_of(point: Point, m: Measurement) -> Iterable[str]:
    """What a reader of the row must know."""
    done, failed = m.window.completed.records, m.window.failed.records
    if m.stopped_by == "time":
        yield "time_up"
    wrong_in = sum(r.input_tokens not in (None, r.ask.input_tokens) for r in done)
    short = sum(r.output_tokens is not None and r.output_tokens < r.ask.output_tokens for r in done)
    long = sum(r.output_tokens is not None and r.output_tokens > r.ask.output_tokens for r in done)
    unsure = sum(r.output_tokens is None and r.finish_reason != "length" for r in done)
    uncounted = sum(r.output_tokens is None for r in done)
    reasoning = sum(r.reasoning_chunks > 0 for r in done)
    reconnects = sum(r.reconnects for r in done)
    if wrong_in:
        yield f"input_length_differs: {wrong_in} of {len(done)}"
    if short:
        yield f"output_shorter_than_asked: {short} of {len(done)}"
    if long:
        yield f"output_longer_than_asked: {long} of {len(done)}"
    if uncounted:
        yield f"usage_missing: {uncounted} of {len(done)}, lengths as asked"
    if unsure:
        yield f"output_length_unsure: {unsure} of {len(done)} did not end by length"
    if any(len(r.chunk_s) > 1 and None in r.chunk_tokens for r in done):
        yield "itl_per_chunk: the server does not count the tokens of each chunk"
    yield from _first_tokens(done)
    if reasoning:
        yield f"reasoning: {reasoning} of {len(done)}"
    if reconnects:
        yield f"reconnects: {reconnects} connections were closed when they were to be used again"
    if m.left_out:
        yield f"trace_rows_left_out: {m.left_out}"
    for kind in sorted({r.error or "" for r in failed}):
        yield f"failed_{kind}: {sum(r.error == kind for r in failed)}"
    if point.concurrency is None and m.window.growth > max(2.0, 0.2 * m.window.in_flight):
        yield f"not_steady: in flight grew by {m.window.growth:.0f} over the window"
    if m.window.paused:
        yield f"slots_paused: {m.window.paused:.2g} on average, after failures"
    if point.concurrency is not None and m.window.in_flight < MIN_HELD_SHARE * point.concurrency:
        yield f"load_not_held: {m.window.in_flight:.3g} of {point.concurrency} in flight on average"
    if m.metrics.delta.get("preemptions", 0) > 0:
        yield "preempted"
    asked, cached = (m.metrics.delta.get(f"cache_{name}", 0.0) for name in ("queries", "hits"))
    if asked and cached > MAX_CACHED_SHARE * asked:
        yield f"prefix_cache_hits: {cached / asked:.0%} of prompt tokens"
    yield from _disagreement(m)
    yield from _client(m)


def _first_tokens(done: Iterable[Record]) -> Iterable[str]:
    """Whether so many tokens come together as the first that TPOT is lower than their period.

    TPOT = (E2E - TTFT)/(n - 1) takes them as one; with k of them, n - k came in that time.
    """
    known = [
        (r.first_tokens, r.output_tokens - 1)
        for r in done
        if r.first_tokens is not None and r.output_tokens is not None and r.output_tokens > 1
    ]
    low = mean_of((first - 1) / others for first, others in known)
    if low > MAX_TPOT_SHARE:
        tokens = mean_of(first for first, _ in known)
        yield f"first_tokens: {tokens:.3g} at once on average, so TPOT is {low:.0%} low"


def _client(m: Measurement) -> Iterable[str]:
    """Whether the client kept up with its own load."""
    done, late_s = m.window.completed.records, lateness_s(m)
    late = sum(seconds > LATE_S for seconds in late_s)
    mean_late_s = mean_of(late_s)
    if late > MAX_LATE_SHARE * len(late_s) or mean_late_s > MAX_LATE_SHARE * mean_of(
        r.e2e_s for r in done
    ):
        yield (
            f"client_late: sends {mean_late_s * 1e3:.2g} ms late on average, {late} of "
            f"{len(late_s)} by more than {LATE_S * 1e3:g} ms"
        )
    lag_s, wait_s = quantile(m.lag_s, 0.99), mean_wait_s(m.lag_s)
    tpot_s, ttft_s = mean_of(r.tpot_s for r in done), mean_of(r.ttft_s for r in done)
    if lag_s is None:
        return
    most_lag_s = max(MIN_LAG_S, MAX_LAG_SHARE * (0.0 if math.isnan(tpot_s) else tpot_s))
    if lag_s > most_lag_s or wait_s > max(MIN_WAIT_S, MAX_WAIT_SHARE * ttft_s):
        yield (
            f"client_lag: {lag_s * 1e3:.1f} ms 1 % of the time, {wait_s * 1e3:.2g} ms on average, "
            f"{m.lag_s[-1] * 1e3:.0f} ms at most"
        )


def _disagreement(m: Measurement) -> Iterable[str]:
    """Whether the server's counters and the answers tell of the same tokens."""
    window = m.window
    if m.metrics.duration_s < window.duration_s / 2:
        return
    done = window.completed.records
    inputs = sum(r.ask.input_tokens if r.input_tokens is None else r.input_tokens for r in done)
    tokens = {
        "prompt": ("prompt_tokens", inputs),
        "output": ("generation_tokens", sum(map(tokens_of, done)) - inputs),
    }
    most = MAX_TOKEN_DIFFERENCE + m.metrics.duration_err_s / (m.metrics.duration_s or math.inf)
    for kind, (counter, ours) in tokens.items():
        counted, seen = m.metrics.rate_per_s(counter), ours / window.duration_s
        if counted is not None and abs(counted - seen) > most * seen:
            yield f"server_counts_{counted:.4g}_{kind}_tokens_per_s, client {seen:.4g}"


def mean_of(values: Iterable[float | None]) -> float:
    """Mean of the known values; NaN: there are none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """That of sorted values; ``None``: there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
