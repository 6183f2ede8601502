"""From a measured point to a row of the table of runs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from servefit.profiling.flags import LATE_S, flags_of, lateness_s, mean_of, quantile
from servefit.profiling.lag import mean_wait_s
from servefit.profiling.measure import Measurement, PointFailedError
from servefit.profiling.plan import Point
from servefit.profiling.record import Record
from servefit.profiling.server import Server

#: So small a share of the requests in flight may show as waiting without there being a queue, in
#: at least so many samples.
MAX_WAITING_SHARE, MIN_GAUGE_SAMPLES = 0.05, 5
#: A mean batch above the seats by less than this, or than its interval, is noise.
MIN_NOISE = 0.02
#: The server's gauge and the mean batch disagree beyond this relative difference.
MAX_RUNNING_DIFFERENCE = 0.15


def point_columns(point: Point, server: Server) -> dict[str, Any]:
    """Columns that say what was asked, of whom."""
    return {
        "model": server.model,
        **server.settings,
        "mode": "serving",
        "concurrency": point.concurrency,
        "request_rate_per_s": point.rate_per_s,
        "arrivals": point.arrivals or "closed",
        "asked_input_tokens": point.input_length,
        "asked_output_tokens": point.output_length,
        "trace": point.trace,
        "repeat": point.repeat,
        **{f"set_{name}": value for name, value in point.settings if name not in server.settings},
    }


def failure_row(point: Point, server: Server, failure: PointFailedError) -> dict[str, Any]:
    """The row of a point that could not be measured: the reason, and no results."""
    outcomes = [r.outcome for r in failure.records]
    return {
        **point_columns(point, server),
        "status": "failed",
        "error": failure.kind,
        "error_detail": str(failure),
        "num_requests": len(outcomes) or None,
        "completed": 0,
        "failed_requests": outcomes.count("failed"),
    }


def measured_row(point: Point, server: Server, m: Measurement) -> dict[str, Any]:
    """The row of a measured point.

    Rates are completions of the steady window over its length. E2E and TTFT are the client's
    means less the mean queue time, and ``mean_batch`` = rate x E2E by Little's law; all three are
    ``None`` where requests may have waited and nobody says how long. Times with the queue are
    there always. Where the engine reports how long requests held a seat, what is left of the
    client's E2E (HTTP, tokenisation, the client itself) is taken off as well: it holds no seat.
    """
    window, flags = m.window, list(flags_of(point, m))
    done = window.completed.records
    rate = len(done) / window.duration_s
    inputs = mean_of(r.ask.input_tokens if r.input_tokens is None else r.input_tokens for r in done)
    outputs = mean_of(
        r.ask.output_tokens if r.output_tokens is None else r.output_tokens for r in done
    )
    e2e_s = mean_of(r.e2e_s for r in done)
    ttft_s = mean_of(r.ttft_s for r in done)
    queue_s, queue_flag = queue_time(point, server, m)
    if queue_flag:
        flags.append(queue_flag)
    if queue_s is not None and queue_s >= ttft_s:
        flags.append("queue_time_over_ttft")
        queue_s = None
    outside_s = time_outside_engine(m, e2e_s, queue_s)
    unseated_s = None if queue_s is None else queue_s + (outside_s or 0.0)
    mean_batch = None if unseated_s is None else rate * (e2e_s - unseated_s)
    if mean_batch is not None and server.seats is not None and mean_batch > server.seats:
        noise = sum(filter(math.isfinite, m.errors))  # and the metrics' window is not quite ours
        if mean_batch > server.seats * (1 + max(MIN_NOISE, noise)):
            flags.append(
                f"mean_batch_over_seats: {mean_batch:.4g} by rate x service time, taken as "
                f"{server.seats} seats"
            )
        mean_batch = float(server.seats)
    running = m.metrics.mean.get("running")
    if running and mean_batch and abs(running / mean_batch - 1) > MAX_RUNNING_DIFFERENCE:
        flags.append(f"running_gauge_says_{running:.3g}")
    kv_tokens = server.settings.get("kv_capacity_tokens")
    usage = m.metrics.mean.get("kv_usage")
    live = m.metrics.mean.get("kv_used_tokens")
    if live is None and usage is not None and kv_tokens is not None:
        live = usage * kv_tokens
    per_token, per_chunk = mean_itl(done)
    return {
        **point_columns(point, server),
        "endpoint": server.endpoint,
        "prompts": "token-ids" if server.token_ids else "text",
        "status": "ok",
        "input_tokens": inputs,
        "output_tokens": outputs,
        "mean_batch": mean_batch,
        "peak_batch": _whole(m.metrics.peak.get("running")),
        "num_requests": len(done) + len(window.failed),
        "completed": len(done),
        "failed_requests": len(window.failed),
        "in_flight_at_end": sum(in_flight_at(r, window.end_s) for r in m.records),
        "requests_cancelled": sum(r.outcome == "cancelled" for r in m.records),
        "requests_sent": sum(r.sent_s is not None for r in m.records),
        "duration_s": window.duration_s,
        "warmup_s": m.warmup_s,
        "stopped_by": m.stopped_by,
        "requests_per_s": rate,
        "total_tokens_per_s": rate * (inputs + outputs),
        "output_tokens_per_s": rate * outputs,
        "total_tokens_per_s_rel_err": _finite(m.errors[0]),
        "e2e_mean_s_rel_err": _finite(m.errors[1]),
        "in_flight_mean": window.in_flight,
        "slots_paused_mean": window.paused if point.concurrency else None,
        "e2e_mean_s": None if unseated_s is None else e2e_s - unseated_s,
        "e2e_with_queue_mean_s": e2e_s,
        "ttft_mean_s": None if unseated_s is None else ttft_in_service(m, ttft_s - unseated_s),
        "ttft_with_queue_mean_s": ttft_s,
        "queue_time_mean_s": queue_s,
        "outside_engine_mean_s": outside_s,
        "tpot_mean_s": _finite(mean_of(r.tpot_s for r in done)),
        "itl_mean_s": per_chunk,
        "itl_per_token_mean_s": per_token,
        **percentiles("e2e_with_queue", [r.e2e_s for r in done]),
        **percentiles("ttft_with_queue", [r.ttft_s for r in done]),
        **percentiles("tpot", [r.tpot_s for r in done]),
        **percentiles("itl", [gap for r in done for gap in gaps(r)]),
        "mean_live_tokens": live or None,
        "mean_kv_usage": usage,
        "peak_kv_usage": m.metrics.peak.get("kv_usage"),
        "preemptions": _whole(m.metrics.delta.get("preemptions")),
        "speculative_decoding": m.metrics.delta.get("drafts", 0.0) > 0 or None,
        "server_running_mean": running,
        "server_waiting_mean": m.metrics.mean.get("waiting"),
        "server_prompt_tokens_per_s": m.metrics.rate_per_s("prompt_tokens"),
        "server_output_tokens_per_s": m.metrics.rate_per_s("generation_tokens"),
        "client_lag_p99_s": quantile(m.lag_s, 0.99),
        "client_wait_mean_s": mean_wait_s(m.lag_s) if m.lag_s else None,
        "late_sends": sum(seconds > LATE_S for seconds in lateness_s(m)),
        "flags": "; ".join(flags) or None,
    }


def queue_time(point: Point, server: Server, m: Measurement) -> tuple[float | None, str | None]:
    """Mean time in the server's queue, and a flag where it is not simply reported.

    Without a report it is 0 where no more requests are in flight than the server has seats and its
    gauge of waiting requests is near 0 (every request waits for the running step to end); where
    the seats are unknown, the gauge alone must show that, and the row says so. Otherwise it is
    unknown.
    """
    reported = m.metrics.queue_time_mean_s
    if reported is not None:
        return reported, None
    in_flight = point.concurrency or m.window.in_flight
    waiting = m.metrics.mean.get("waiting")
    if waiting is not None and waiting > MAX_WAITING_SHARE * in_flight:
        return None, f"queue_time_unknown: {waiting:.3g} requests waited on average"
    if server.seats is not None and in_flight > server.seats:
        return None, f"queue_time_unknown: {in_flight:g} in flight, {server.seats} seats"
    if point.concurrency is not None and in_flight <= (server.seats or 1):
        return 0.0, None
    if waiting is not None and m.metrics.samples >= MIN_GAUGE_SAMPLES:
        return 0.0, f"queue_time_taken_as_0: {waiting:.2g} requests waited on average"
    return None, "queue_time_unknown: give --max-num-seqs"


def time_outside_engine(m: Measurement, e2e_s: float, queue_s: float | None) -> float | None:
    """Mean time of a request that it neither waited for a seat nor held one.

    ``None`` where the engine does not report how long requests held a seat.
    """
    seated_s = m.metrics.service_time_mean_s
    if seated_s is None or queue_s is None:
        return None
    return max(0.0, e2e_s - queue_s - seated_s)


def ttft_in_service(m: Measurement, remainder_s: float) -> float | None:
    """Mean time from getting a seat to the first token, as the engine reports it.

    Without a report it is what remains of the client's TTFT, ``None`` if that is nothing: then
    time outside the engine was spent after the first token.
    """
    if m.metrics.prefill_time_mean_s is not None:
        return m.metrics.prefill_time_mean_s
    return remainder_s if remainder_s > 0 else None


def mean_itl(done: Sequence[Record]) -> tuple[float | None, float | None]:
    """Mean time between tokens, and between chunks, after what came first.

    The first is ``None`` unless the server counts the tokens of every chunk that came later.
    """
    between = [gap for record in done for gap in gaps(record)]
    counts = [record.later_tokens for record in done]
    known = [tokens for tokens in counts if tokens is not None]
    counted = sum(known) if len(known) == len(counts) else 0
    return (
        sum(between) / counted if counted > 0 else None,
        sum(between) / len(between) if between else None,
    )


def in_flight_at(record: Record, at_s: float) -> bool:
    """Whether a request was sent by then, and had not ended."""
    if record.sent_s is None or record.sent_s > at_s:
        return False
    return record.finished_s is None or record.finished_s > at_s


def gaps(record: Record) -> list[float]:
    """Times between the chunks of an answer; those that arrived in one piece are one."""
    return [later - earlier for earlier, later in itertools.pairwise(dict.fromkeys(record.chunk_s))]


def percentiles(name: str, values: Iterable[float | None]) -> dict[str, float | None]:
    """Median and 99th percentile under the table's names.

    Nothing takes no time: a zero, of chunks that were read together, is unknown.
    """
    known = sorted(v for v in values if v is not None)
    return {
        f"{name}_median_s": (statistics.median(known) if known else 0.0) or None,
        f"{name}_p99_s": quantile(known, 0.99) or None,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
