"""Checks of a point against itself: each agrees, corrects with a reason, flags, or refuses.

What must hold between the columns of any table of runs is checked once more, with the hardware's
limits, by `servefit.runs.check`; here stands what only the tools' own files can tell: the load that
was asked for, medians, several tokens a chunk, and which of two numbers is the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

from servefit.importers.derive import SATURATED, TPOT_ABOVE_ITL
from servefit.importers.point import Point
from servefit.runs.schema import NOT_ONE_ENGINE

#: A mean TPOT this many times below what E2E and TTFT leave is a counting error, not a mix.
TPOT_TOO_SMALL = 1.5

#: Mixed lengths move the mean of TPOT against the ratio of means by this much in good runs.
MIXED_LENGTHS = 0.15

#: Mean gap between chunks above mean TPOT by this much: chunks hold several tokens.
CHUNKED = 1.3

#: Requests in the system against the client's concurrency: above, it contradicts; below, the
#: load was mostly ramp and drain.
LITTLE_ABOVE = 1.05
LITTLE_REFUSED = 1.5
LITTLE_BELOW = 0.7

#: Fewer rounds of the concurrency than this: ramp and drain are a large part of the run.
STEADY_ROUNDS = 4.0

#: Share of requests that failed above which the rest is another load.
FAILED_REFUSED = 0.2

#: Actual lengths this far from the nominal ones are worth a word.
NOMINAL = 0.05

#: Mean above median by this factor: a few requests, such as the first burst, weigh most.
SKEWED = 2.0

#: Mean throughputs that count the same tokens differ by rounding only.
COUNTS = 0.05

#: Marks a report that may be a summary over several loads.
LOAD_UNSAID = "_load_unsaid"

Check = Callable[[Point], None]


def completion(point: Point) -> None:
    """Completed against requested: the load of failed requests was there, their tokens are not."""
    sent, done = point.number("num_requests"), point.number("completed")
    failed = point.number("failed_requests")
    if done == 0:
        point.say("completion", "refused", "no request completed")
        return
    if sent is not None and done is not None and sent - done > (failed or 0.0):
        failed = sent - done
        point.readings.pop("failed_requests", None)
        point.derive("failed_requests", failed, "num_requests - completed")
    if sent is not None and done is not None and done > sent:
        message = f"{done:.0f} completed of {sent:.0f} requested: num_requests left out"
        point.readings.pop("num_requests")
        point.say("completion", "flagged", message)
    if not failed or done is None:
        if sent is not None and done == sent:
            point.say("completion", "agrees", f"all {sent:.0f} requests completed")
        return
    share = failed / (failed + done)
    if sent is not None and sent != done:
        point.readings.pop("num_requests", None)  # failed_requests + completed say it
    point.say(
        "completion",
        "refused" if share > FAILED_REFUSED else "flagged",
        f"{failed:.0f} of {failed + done:.0f} requests failed or were cancelled ({share:.0%}): "
        "their load is not in the tokens counted",
    )


def nominal_lengths(point: Point) -> None:
    """Actual lengths against those asked for."""
    for name in ("input", "output"):
        nominal = point.number(f"nominal_{name}_tokens")
        actual = point.number(f"{name}_tokens")
        if nominal is None or actual is None or nominal <= 0:
            continue
        agrees = abs(actual / nominal - 1) <= NOMINAL
        point.say(
            f"{name} length",
            "agrees" if agrees else "flagged",
            f"mean {name} {actual:.1f} tokens, asked for {nominal:.0f}"
            + ("" if agrees else ": the actual length is taken"),
        )


def token_rates(point: Point) -> None:
    """Output against total tokens: total = output + requests/s x input."""
    values = point.numbers("output_tokens_per_s", "total_tokens_per_s")
    if values is None:
        return
    output, total = values
    if output > total * (1 + 1e-6):
        message = f"output {output:.6g} tokens/s is above total {total:.6g} tokens/s"
        point.say("token rates", "refused", message)
        return
    rates = point.numbers("requests_per_s", "input_tokens")
    if rates is None or point.readings["total_tokens_per_s"].source == "derived":
        return
    implied = output + rates[0] * rates[1]
    agrees = implied > 0 and abs(total / implied - 1) <= COUNTS
    message = f"total {total:.6g} tokens/s, output + requests/s x input = {implied:.6g}"
    if agrees:
        point.say("token rates", "agrees", message)
    elif abs(total / output - 1) <= 1e-3:
        reason = f"{message}: the tool's total counts output tokens only"
        point.correct("total_tokens_per_s", implied, "token rates", reason)
    else:
        point.say("token rates", "flagged", message)


def milliseconds(point: Point) -> None:
    """Seconds against milliseconds: decode time per answer against E2E, a factor of 1000."""
    values = point.numbers("e2e_mean_s", "output_tokens")
    if values is None or values[1] <= 1:
        return
    for name in ("tpot_mean_s", "itl_mean_s"):
        token = point.number(name)
        if token is None or point.readings[name].source == "derived":
            continue
        ratio = token * (values[1] - 1) / values[0]
        if 300 < ratio < 3000:
            message = f"{name} x (output - 1) is {ratio:.0f} times E2E: it is in milliseconds"
            point.correct(name, token / 1000, "units", message)
        elif 1 / 3000 < ratio < 1 / 300 and point.readings["e2e_mean_s"].source != "derived":
            message = f"E2E is {1 / ratio:.0f} times {name} x (output - 1): check the units"
            point.say("units", "refused", message)


def decode_time(point: Point) -> None:
    """``(E2E - TTFT) / (OL - 1)`` against TPOT: exact for equal lengths only."""
    output, tpot = point.number("output_tokens"), point.number("tpot_mean_s")
    times = point.numbers("e2e_mean_s", "ttft_mean_s")
    measured = point.has("e2e_mean_s") and point.readings["e2e_mean_s"].source != "derived"
    if times and measured and output and output > 1 and tpot and times[0] > times[1]:
        if point.readings["tpot_mean_s"].source == "derived":
            return
        implied = (times[0] - times[1]) / (output - 1)
        message = f"TPOT {1e3 * tpot:.4g} ms, (E2E - TTFT) / (OL - 1) = {1e3 * implied:.4g} ms"
        if implied > TPOT_TOO_SMALL * tpot:
            reason = (
                f"{message}: TPOT is {implied / tpot:.2f} times too small, as where chunks are "
                "counted for tokens (or empty chunks too)"
            )
            point.correct("tpot_mean_s", implied, "decode time", reason)
            _drop_itl(point, implied)
        elif tpot > (1 + MIXED_LENGTHS) * implied:
            cause = "its mean over requests is dominated by short answers"
            point.say("decode time", "flagged", f"{message}: {cause}")
        elif implied > (1 + MIXED_LENGTHS) * tpot:
            point.say("decode time", "flagged", f"{message}: lengths are mixed")
        else:
            point.say("decode time", "agrees", message)


def _drop_itl(point: Point, implied: float) -> None:
    itl = point.number("itl_mean_s")
    if itl is not None and itl * TPOT_TOO_SMALL < implied:
        for name in ("itl_mean_s", "itl_median_s", "itl_p99_s", "tpot_median_s", "tpot_p99_s"):
            if point.readings.pop(name, None) is not None:
                point.notes.append(f"{name}: left out, of the same count as TPOT")


def chunks(point: Point) -> None:
    """Mean TPOT against mean ITL: over requests against over chunks, one token a chunk or more."""
    tpot, itl = point.number("tpot_mean_s"), point.number("itl_mean_s")
    if not tpot or not itl or point.readings["itl_mean_s"].source == "derived":
        return
    ratio = itl / tpot
    message = f"mean ITL {1e3 * itl:.4g} ms, mean TPOT {1e3 * tpot:.4g} ms"
    if ratio > CHUNKED:
        flag = (
            f"{message}: {ratio:.2f} tokens a chunk (speculative decoding, or a server that sends "
            "several at once): TPOT is the time of a token"
        )
        point.say("chunks", "flagged", flag)
        if "speculative_decoding" not in point.readings:
            why = f"mean ITL is {ratio:.2f} x mean TPOT"
            point.suggest("speculative_decoding", True, why)
    elif tpot > TPOT_ABOVE_ITL * itl:
        flag = (
            f"{message}: TPOT is a mean over requests, dominated by short answers; ITL is a mean "
            "over tokens, and is used where E2E is derived"
        )
        point.say("chunks", "flagged", flag)
    else:
        point.say("chunks", "agrees", message)


def statistics(point: Point) -> None:
    """Means against medians and percentiles: order, and a few requests that weigh most."""
    for name in ("ttft", "tpot", "itl", "e2e"):
        mean, median = point.number(f"{name}_mean_s"), point.number(f"{name}_median_s")
        p99 = point.number(f"{name}_p99_s")
        if median is not None and p99 is not None and median > p99 * (1 + 1e-6):
            message = (
                f"median {name.upper()} {median:.4g} s is above its 99th percentile {p99:.4g} s"
            )
            point.say("percentiles", "refused", message)
        if name in ("ttft", "e2e") and mean and median and mean > SKEWED * median:
            message = (
                f"mean {name.upper()} {mean:.4g} s is {mean / median:.1f} times its median "
                f"{median:.4g} s: a few requests, such as the first burst, weigh most"
            )
            point.say("percentiles", "flagged", message)


def one_load(point: Point) -> None:
    """A report that does not say its load may be a summary over several."""
    said = ("request_rate_per_s", "concurrency")
    if point.has(LOAD_UNSAID) and not any(point.has(column) for column in said):
        point.say(
            "one load",
            "refused",
            "the report says no load: a summary over all stages mixes their loads; import the "
            "stage reports, or give --set request_rate_per_s=R if it is of one load",
        )


def steady(point: Point) -> None:
    """A run that is mostly ramp and drain, or whose queue only grows, has no steady state."""
    sent = point.number("completed") or point.number("num_requests")
    concurrency, rate = point.number("concurrency"), point.number("request_rate_per_s")
    served = point.number("requests_per_s")
    if point.has("batch"):
        return
    if point.has("_all_at_once") and sent:
        point.say(
            "steady state",
            "flagged",
            f"all {sent:.0f} requests arrive at once: TTFT holds the wait for the others' prompts "
            "(and for a seat), and the drain is a large part of the run",
        )
    elif concurrency and sent and sent < STEADY_ROUNDS * concurrency:
        point.say(
            "steady state",
            "flagged",
            f"{sent:.0f} requests at concurrency {concurrency:.0f} are {sent / concurrency:.1f} "
            "rounds: not steady, ramp and drain are a large part of the run",
        )
    if rate and served:
        message = f"{served:.4g} requests/s served of {rate:.4g} arriving"
        saturated = served < SATURATED * rate and (concurrency is None or concurrency > 1000)
        few = sent is not None and sent < 20
        if saturated and not few:
            reason = f"{message}: past saturation, the queue grows and nothing is steady"
            point.say("steady state", "flagged", reason)
        elif saturated:
            point.say("steady state", "flagged", f"{message}: {sent:.0f} requests are too few")
        else:
            point.say("steady state", "agrees", message)


def littles_law(point: Point) -> None:
    """Requests in the system, requests/s x E2E, against the concurrency that the client held."""
    values = point.numbers("requests_per_s", "e2e_with_queue_mean_s") or point.numbers(
        "requests_per_s", "e2e_mean_s"
    )
    concurrency = point.number("concurrency")
    if values is None or point.has("batch"):
        return
    in_system = values[0] * values[1]
    message = f"requests/s x E2E = {in_system:.4g} requests in the system"
    if concurrency is None:
        point.say("Little's law", "agrees", message)
        return
    message += f", the client held {concurrency:.0f}"
    derived = point.readings.get("e2e_mean_s")
    is_derived = derived is not None and derived.source == "derived"
    if in_system > LITTLE_REFUSED * concurrency and not is_derived:
        point.say("Little's law", "refused", f"{message}: rates and times are of different loads")
    elif in_system > LITTLE_ABOVE * concurrency:
        point.say("Little's law", "flagged", f"{message}: E2E or the rate is off")
    elif in_system < LITTLE_BELOW * concurrency:
        point.say("Little's law", "flagged", f"{message}: seldom as many as asked for")
    else:
        point.say("Little's law", "agrees", message)
    measured = point.number("mean_batch")
    if measured is not None and measured > concurrency:
        value, reason = (
            concurrency,
            f"{measured:.4g} by Little's law, but no more than {concurrency:.0f} were sent",
        )
        point.correct("mean_batch", value, "Little's law", reason)


def servers(point: Point) -> None:
    """Servers that one engine's law does not describe."""
    for column, what in (
        ("speculative_decoding", "decodes speculatively: a step gives several tokens"),
        ("disaggregated", "splits prefill and decode over servers"),
    ):
        reading = point.readings.get(column)
        suggested = next(
            (s for s in point.suggestions if s.column == column and s.value is True), None
        )
        if reading is not None and reading.value is True:
            message = f"the server {what}: no {NOT_ONE_ENGINE} holds ({reading.source})"
            point.say("server", "flagged", message)
        elif reading is None and suggested is not None:
            message = (
                f"the server perhaps {what} ({suggested.why}): no {NOT_ONE_ENGINE} would hold; "
                f"confirm with --set {column}=true or false"
            )
            point.say("server", "flagged", message)


def per_gpu(point: Point) -> None:
    """Rates given per GPU are for the whole replica once its GPUs are known."""
    gpus = point.number("_rated_gpus")
    if gpus is not None:
        point.say("per GPU", "corrected", f"the file's rates are per GPU: times {gpus:.0f} GPUs")


#: Before columns are derived: units and counts; after: relations.
FIRST: tuple[Check, ...] = (completion,)
MIDDLE: tuple[Check, ...] = (milliseconds, decode_time, chunks)
LAST: tuple[Check, ...] = (
    nominal_lengths,
    token_rates,
    statistics,
    one_load,
    steady,
    littles_law,
    servers,
    per_gpu,
)
