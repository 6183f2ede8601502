"""``sglang.bench_one_batch`` (once ``bench_latency``) and ``bench_one_batch_server``."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields
from servefit.importers.point import Point

NAME = "SGLang bench_one_batch"

_KEYS = {"batch_size", "input_len", "output_len", "overall_throughput"}


def recognise(document: Document) -> bool:
    """A static batch with its overall throughput."""
    return set(document.first) >= _KEYS


def read(document: Document) -> Iterator[Point]:
    """A point a line: static batches, in seconds.

    ``prefill_latency`` is of the whole batch and gives the first token; ``output_throughput`` of
    the server variant leaves the prefill out, so it is not the rate of a run.
    """
    for where, record in document.records():
        if set(record) >= _KEYS:
            yield _point(record, document.name, where)


def _point(record: Record, file: str, where: str) -> Point:
    point = Point(NAME, file, where)
    point.put("mode", "static_batch", "format")
    point.put("engine", "sglang", "format")
    fields = Fields(record, point)
    fields.take("batch", "batch_size")
    fields.take("input_tokens", "input_len")
    output = fields.take("output_tokens", "output_len")
    e2e = fields.take("e2e_mean_s", "total_latency", "latency")
    ttft = fields.take("ttft_mean_s", "prefill_latency", "last_ttft", "ttft")
    if fields.number("median_decode_latency"):
        fields.take("tpot_median_s", "median_decode_latency")
    fields.take("prefill_tokens_per_s", "prefill_throughput", "input_throughput")
    fields.take("decode_tokens_per_s", "median_decode_throughput", "output_throughput")
    fields.take("total_tokens_per_s", "overall_throughput")
    accepted = fields.number("acc_length", "accept_length")
    if accepted and accepted > 1:
        point.put("speculative_decoding", True, "acc_length", accepted, "> 1 token a step")
    if e2e and ttft and output == 1:
        point.readings.pop("ttft_mean_s")  # the same as E2E
    cached = fields.number("cache_hit_rate")
    if cached and cached > 0.01:
        point.say("prefix cache", "flagged", f"{cached:.0%} of prompt tokens were not computed")
    return point
