"""inference-perf ``*_prometheus_metrics.json``: the server's own view of a stage."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, dig, mapping
from servefit.importers.point import Point

NAME = "inference-perf server metrics"


def recognise(document: Document) -> bool:
    """Successes with a rate instead of latencies by request."""
    good = mapping(document.first.get("successes"))
    return "load_summary" in document.first and "rate" in good and "latency" not in good


def read(document: Document) -> Iterator[Point]:
    """One point; its ``prompt_len`` and ``output_len`` means are of no length: rates are used."""
    for where, record in document.records():
        if "successes" in record:
            yield _point(record, document.name, where)


def _point(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where)
    good = Fields(mapping(record.get("successes")), point, "successes.")
    good.take("completed", "count")
    requests = good.take("requests_per_s", "rate")
    for side, key in (("input", "prompt_len"), ("output", "output_len")):
        tokens = good.below(key).number("rate")
        if requests and tokens:
            how = "tokens/s / requests/s; the mean next to it is of something else"
            point.put(f"{side}_tokens", tokens / requests, f"successes.{key}.rate", tokens, how)
    good.below("output_len").take("output_tokens_per_s", "rate")
    good.below("time_per_output_token").take("tpot_mean_s", "mean")
    good.below("kv_cache_usage_percentage").take("mean_kv_usage", "mean")
    good.below("num_preemptions_total").take("preemptions", "mean")
    queue = good.below("queue_len").number("mean") or 0.0
    waited = queue / requests if requests else 0.0
    for latency, key in (("ttft", "time_to_first_token"), ("e2e", "request_latency")):
        mean = good.below(key).number("mean")
        if mean is None:
            continue
        if waited > 0:
            point.put(f"{latency}_with_queue_mean_s", mean, f"successes.{key}.mean", mean)
            how = f"less {waited:.4g} s in the queue: queue_len / requests/s (Little)"
            service = mean - waited if mean > waited else None
            point.put(f"{latency}_mean_s", service, f"successes.{key}.mean", mean, how)
        else:
            point.put(f"{latency}_mean_s", mean, f"successes.{key}.mean", mean)
    cached = dig(record, "successes", "prefix_cache_hit_percent", "mean")
    if isinstance(cached, int | float) and cached > 1:
        point.say("prefix cache", "flagged", f"{cached:.0f} % of prompt tokens were not computed")
    point.say(
        "one load",
        "flagged",
        "the server's view of a stage; the report named summary mixes all stages and is none",
    )
    return point
