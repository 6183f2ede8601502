"""``vllm bench latency``: one static batch, again and again."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers.document import Document
from servefit.importers.fields import Fields, sequence
from servefit.importers.point import Point

NAME = "vLLM bench latency"

#: Fewer repetitions than this say little of the spread.
FEW = 5


def recognise(document: Document) -> bool:
    """``avg_latency`` with the list or the percentiles of latencies."""
    return "avg_latency" in document.first and not {"latencies", "percentiles"}.isdisjoint(
        document.first
    )


def read(document: Document) -> Iterator[Point]:
    """E2E of the whole batch, in seconds; lengths and batch are not in the file."""
    for where, record in document.records():
        if "avg_latency" not in record:
            continue
        point = Point(NAME, document.name, where)
        point.put("mode", "static_batch", "format")
        point.put("engine", "vllm", "format")
        fields = Fields(record, point)
        fields.take("e2e_mean_s", "avg_latency")
        fields.take("input_tokens", "input_len")
        fields.take("output_tokens", "output_len")
        fields.take("batch", "batch_size")
        fields.take("tensor_parallel_size", "tensor_parallel_size")
        fields.take_text("model", "model")
        percentiles = fields.below("percentiles")
        percentiles.take("e2e_median_s", "50")
        percentiles.take("e2e_p99_s", "99")
        runs = len(sequence(record.get("latencies")))
        if 0 < runs < FEW:
            point.say("repetitions", "flagged", f"{runs} iterations only")
        if not point.has("batch"):
            point.notes.append("lengths and batch are not in the file")
        yield point
