"""inference-perf lifecycle reports: a stage a point; summaries over stages are none."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import judge, serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, dig, mapping
from servefit.importers.point import Point

NAME = "inference-perf"

#: A client that sends later than this on average did not make the load it was asked for.
LATE_S = 1.0

_TIMES = {
    "e2e": "request_latency",
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
}


def recognise(document: Document) -> bool:
    """A load summary, and what succeeded with its latencies."""
    first = document.first
    return "load_summary" in first and isinstance(dig(first, "successes", "latency"), dict)


def read(document: Document) -> Iterator[Point]:
    """Everything is in seconds; keys carry no unit."""
    for where, record in document.records():
        if "load_summary" in record and "successes" in record:
            yield _point(record, document.name, where)


def _point(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where)
    load = Fields(mapping(record.get("load_summary")), point, "load_summary.")
    good = Fields(mapping(record.get("successes")), point, "successes.")
    bad = Fields(mapping(record.get("failures")), point, "failures.")
    load.take("num_requests", "count")
    good.take("completed", "count")
    bad.take("failed_requests", "count")
    load.take("request_rate_per_s", "requested_rate")
    load.take("concurrency", "concurrency", "concurrency_level", "num_workers_concurrency")
    rates = good.below("throughput")
    rates.take("requests_per_s", "requests_per_sec")
    rates.take("output_tokens_per_s", "output_tokens_per_sec")
    rates.take("total_tokens_per_s", "total_tokens_per_sec")
    times = good.below("latency")
    for latency, key in _TIMES.items():
        block = times.below(key)
        for statistic, name in (("mean", "mean"), ("median", "median"), ("p99", "p99")):
            block.take(f"{latency}_{statistic}_s", name, *(("p50",) if name == "median" else ()))
    for column, keys in (
        ("input_tokens", ("prompt_len", "prompt_tokens")),
        ("output_tokens", ("output_len", "output_tokens")),
    ):
        for key in keys:
            good.below(key).take(column, "mean")
    if not load.raw("requested_rate")[0] and not point.has("concurrency"):
        point.put(judge.LOAD_UNSAID, True, "load_summary", "", "no requested_rate")
    delay = load.below("schedule_delay").number("mean")
    if delay is not None and delay > LATE_S and not point.refused:
        message = f"requests left {delay:.3g} s late on average: the client could not keep up"
        point.say("client", "flagged", message)
    return point
