"""Columns that follow from others, each by a formula that `--explain` names."""

from __future__ import annotations

import math

from servefit.importers.point import Point

#: Mean TPOT above mean ITL by more than this: short answers dominate the mean over requests.
TPOT_ABOVE_ITL = 1.15

#: Answers from this length on: with fewer tokens TTFT is most of E2E without any queue.
QUEUE_MIN_OUTPUT_TOKENS = 32

#: Share of E2E from which TTFT is taken for queueing.
QUEUE_SHARE = 0.5

#: The same where all requests arrive at once: whoever is not served first waits.
QUEUE_SHARE_OF_BURST = 0.1

#: Served below this share of the arrivals: the queue grows for as long as the run lasts.
SATURATED = 0.9

#: More requests in the system than seats by this much: the rest waits.
_SEATS_EXCESS = 0.05

#: Fewer requests than this at once before their first token are in prefill, not in a queue.
QUEUE_MIN_WAITING = 2.0

#: Prompts longer than this many times the answer: prefill alone may be most of E2E.
PREFILL_HEAVY = 16.0


def rates_and_lengths(point: Point) -> None:
    """Mean lengths, request and token rates from totals and from each other."""
    for name in ("input", "output"):
        _ratio(point, f"{name}_tokens", f"total_{name}_tokens", "completed")
    _ratio(point, "requests_per_s", "completed", "duration_s")
    _ratio(point, "requests_per_s", "output_tokens_per_s", "output_tokens")
    rates = point.numbers("total_tokens_per_s", "input_tokens", "output_tokens")
    if rates and rates[1] + rates[2] > 0:
        how = "total_tokens_per_s / (input_tokens + output_tokens)"
        point.derive("requests_per_s", rates[0] / (rates[1] + rates[2]), how)
    _ratio(point, "output_tokens", "output_tokens_per_s", "requests_per_s")
    rates = point.numbers("total_tokens_per_s", "output_tokens_per_s", "requests_per_s")
    if rates and rates[2] > 0 and rates[0] > rates[1]:
        how = "(total - output tokens/s) / requests_per_s"
        point.derive("input_tokens", (rates[0] - rates[1]) / rates[2], how)
    if rates := point.numbers("requests_per_s", "output_tokens"):
        point.derive("output_tokens_per_s", rates[0] * rates[1], "requests_per_s x output_tokens")
    if rates := point.numbers("output_tokens_per_s", "requests_per_s", "input_tokens"):
        how = "output_tokens_per_s + requests_per_s x input_tokens"
        point.derive("total_tokens_per_s", rates[0] + rates[1] * rates[2], how)


def static_batch(point: Point) -> None:
    """E2E and rates of one static batch, Eq. 6: batch x tokens / E2E."""
    sizes = point.numbers("batch", "completed", "duration_s")
    if sizes and sizes[0] == sizes[1]:
        point.derive("e2e_mean_s", sizes[2], "duration_s: all requests were one static batch")
    _ratio(point, "requests_per_s", "batch", "e2e_mean_s")


def _ratio(point: Point, column: str, above: str, below: str) -> None:
    """``column = above / below``, where both are known and positive."""
    values = point.numbers(above, below)
    if values and values[0] > 0 and values[1] > 0:
        point.derive(column, values[0] / values[1], f"{above} / {below}")


def latencies(point: Point) -> None:
    """TPOT from E2E and TTFT, or E2E from TTFT and TPOT.

    ``TPOT = (E2E - TTFT) / (OL - 1)`` and back, on means: exact for equal lengths. The gaps of all
    answers together are ``(OL - 1) x ITL`` a request, whatever the lengths, if each chunk is one
    token; so where mean TPOT is far above mean ITL, short answers dominate it, and ITL is taken.
    """
    output = point.number("output_tokens")
    if output is None or output <= 1:
        return
    times = point.numbers("e2e_mean_s", "ttft_mean_s")
    if times and times[0] > times[1]:
        how = "(e2e_mean_s - ttft_mean_s) / (output_tokens - 1)"
        point.derive("tpot_mean_s", (times[0] - times[1]) / (output - 1), how)
    ttft, (token, name) = point.number("ttft_mean_s"), token_time(point)
    if ttft is not None and token is not None:
        point.derive(
            "e2e_mean_s",
            ttft + (output - 1) * token,
            f"ttft_mean_s + (output_tokens - 1) x {name}",
        )


def token_time(point: Point) -> tuple[float | None, str]:
    """Mean time of a token over all tokens of all answers, and the column it is from."""
    tpot, itl = point.number("tpot_mean_s"), point.number("itl_mean_s")
    if tpot is not None and itl is not None and tpot > TPOT_ABOVE_ITL * itl:
        return itl, "itl_mean_s"
    return (itl, "itl_mean_s") if tpot is None else (tpot, "tpot_mean_s")


def batch(point: Point) -> None:
    """The mean batch by Little's law, once queueing is told from service.

    ``requests_per_s x E2E`` are the requests in the system. Those that wait for a seat are no
    batch: where TTFT is most of E2E, where all requests arrive at once, or where more are in the
    system than the server has seats, TTFT and E2E go to the columns that hold queueing, and what
    is left in service is the decode, ``(OL - 1) x TPOT``.
    """
    if point.has("batch") or point.has("mean_batch"):
        return
    if not point.has("e2e_with_queue_mean_s") and (reason := _queue(point)):
        _take_queue_out(point, reason)
    if values := point.numbers("requests_per_s", "e2e_mean_s"):
        point.derive("mean_batch", values[0] * values[1], "requests_per_s x e2e_mean_s (Little)")


def _queue(point: Point) -> str:
    """Why E2E holds time in a queue; empty if nothing says so."""
    in_system, seats = point.numbers("requests_per_s", "e2e_mean_s"), point.number("max_num_seqs")
    if in_system and seats and in_system[0] * in_system[1] > seats * (1 + _SEATS_EXCESS):
        return f"{in_system[0] * in_system[1]:.4g} requests in the system, {seats:.0f} seats"
    burst = point.has("_all_at_once")
    times, statistic = point.numbers("ttft_mean_s", "e2e_mean_s"), "mean"
    if times is None:
        times, statistic = point.numbers("ttft_median_s", "e2e_median_s"), "median"
    if times is None or times[1] <= 0:
        served, arriving = point.number("requests_per_s"), point.number("request_rate_per_s")
        behind = bool(served and arriving and served < SATURATED * arriving)
        if (burst or behind) and point.has("e2e_mean_s"):
            unseen = "no TTFT in the file: E2E may hold a wait for a seat, and the batch with it"
            point.say("queueing", "flagged", unseen)
        return ""
    share = times[0] / times[1]
    waiting = times[0] * (point.number("requests_per_s") or math.inf)
    limit = QUEUE_SHARE_OF_BURST if burst else QUEUE_SHARE
    if not limit < share <= 1 or waiting < QUEUE_MIN_WAITING:
        return ""
    reason = f"{statistic} TTFT {times[0]:.4g} s is {share:.0%} of E2E"
    output = point.number("output_tokens") or 0.0
    heavy = (point.number("input_tokens") or 0.0) > PREFILL_HEAVY * output
    if not burst and (output < QUEUE_MIN_OUTPUT_TOKENS or heavy):
        told = "long prefills, or a wait for a seat: not told apart with so few output tokens"
        point.say("queueing", "flagged", f"{reason}: {told}")
        return ""
    return f"{reason}, all requests arrive at once" if burst else reason


def _take_queue_out(point: Point, reason: str) -> None:
    for name in ("ttft", "e2e"):
        point.move(f"{name}_mean_s", f"{name}_with_queue_mean_s")
    message = (
        f"{reason}: requests waited for a seat, so TTFT and E2E are kept as "
        "ttft_with_queue_mean_s and e2e_with_queue_mean_s"
    )
    output, (token, name) = point.number("output_tokens"), token_time(point)
    if token is None or output is None or output <= 1:
        point.say("queueing", "flagged", f"{message}; the E2E in service is not in the file")
        return
    how = f"(output_tokens - 1) x {name}: decode alone, the prompt's own prefill is left out"
    point.derive("e2e_mean_s", (output - 1) * token, how)
    point.say("queueing", "corrected", f"{message}; e2e_mean_s = {how}")
