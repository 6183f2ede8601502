"""What a reader of a row must know: each flag a name, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from servefit.profiling.measure import Measurement
from servefit.profiling.plan import Point
from servefit.profiling.record import Record
from servefit.profiling.window import tokens_of

#: A request sent so much after its time is late; the event loop's own timers are exact to 1 ms.
LATE_S = 0.005
#: The client limits the point if its event loop's lag (99th percentile) exceeds this share of the
#: mean time between tokens, or so many sends are late.
MAX_LAG_SHARE, MAX_LATE_SHARE = 0.1, 0.02
MIN_LAG_S = 0.003
#: A larger share of prompt tokens found in a prefix cache makes prefill look faster than it is.
MAX_CACHED_SHARE = 0.02
#: A closed loop whose mean load is below this share of what was asked measured another load.
MIN_HELD_SHARE = 0.95
#: Client and server disagree on the tokens per second beyond this relative difference.
MAX_TOKEN_DIFFERENCE = 0.1


def late_sends(done: Iterable[Record]) -> int:
    """Requests sent more than `LATE_S` after their time."""
    return sum(r.sent_s is not None and r.sent_s - r.scheduled_s > LATE_S for r in done)


def flags_of(point: Point, m: Measurement) -> Iterable[str]:
    """What a reader of the row must know."""
    done, failed = m.window.completed.records, m.window.failed.records
    if m.stopped_by == "time":
        yield "time_up"
    wrong_in = sum(r.input_tokens not in (None, r.ask.input_tokens) for r in done)
    short = sum(r.output_tokens is not None and r.output_tokens < r.ask.output_tokens for r in done)
    unsure = sum(r.output_tokens is None and r.finish_reason != "length" for r in done)
    uncounted = sum(r.output_tokens is None for r in done)
    reasoning = sum(r.reasoning_chunks > 0 for r in done)
    if wrong_in:
        yield f"input_length_differs: {wrong_in} of {len(done)}"
    if short:
        yield f"output_shorter_than_asked: {short} of {len(done)}"
    if uncounted:
        yield f"usage_missing: {uncounted} of {len(done)}, lengths as asked"
    if unsure:
        yield f"output_length_unsure: {unsure} of {len(done)} did not end by length"
    if reasoning:
        yield f"reasoning: {reasoning} of {len(done)}"
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
    lag, tpot = quantile(m.lag_s, 0.99), mean_of(r.tpot_s for r in done)
    late = late_sends(done)
    if late > MAX_LATE_SHARE * len(done):
        yield f"client_late: {late} of {len(done)} sends"
    if lag is not None and lag > max(MIN_LAG_S, MAX_LAG_SHARE * (tpot if tpot == tpot else 0.0)):
        yield f"client_lag: {lag * 1e3:.1f} ms"


def _disagreement(m: Measurement) -> Iterable[str]:
    counted = m.metrics.rate_per_s("generation_tokens")
    if counted is None or m.metrics.duration_s < m.window.duration_s / 2:
        return
    window = m.window
    done = window.completed.records
    tokens = sum(tokens_of(r) - (r.input_tokens or r.ask.input_tokens) for r in done)
    seen = tokens / window.duration_s
    if abs(counted / seen - 1) > MAX_TOKEN_DIFFERENCE:
        yield f"server_counts_{counted:.4g}_output_tokens_per_s, client {seen:.4g}"


def mean_of(values: Iterable[float | None]) -> float:
    """Mean of the known values; NaN: there are none."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else math.nan


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """That of sorted values; ``None``: there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
