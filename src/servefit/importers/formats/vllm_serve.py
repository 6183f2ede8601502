"""``vllm bench serve``, ``benchmark_serving.py`` of every age, and forks that write its keys."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, normal, to_text
from servefit.importers.point import Point
from servefit.importers.tables import csv_blocks, csv_header, records

NAME = "vLLM bench serve"

_KEYS = {
    "mean_ttft_ms",
    "median_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "mean_itl_ms",
    "request_throughput",
    "request_inthroughput",
    "output_throughput",
    "total_token_throughput",
}


def recognise(document: Document) -> bool:
    """At least two of the keys of its results, in JSON or in a CSV header."""
    header = csv_header(document) if document.kind == "text" else document.first
    return len(_KEYS & {normal(key) for key in header}) >= 2


def read(document: Document) -> Iterator[Point]:
    """A point a record: a file, a line of ``--append-result``, an item of a sweep's summary."""
    if document.kind == "text":
        for i, row in enumerate(records(next(csv_blocks(document.text), []))):
            yield read_record(row, document.name, f"row {i}")
        return
    for where, record in document.records():
        if recognise_record(record):
            yield read_record(record, document.name, where)


def recognise_record(record: Record) -> bool:
    """Whether one record of a list is a result."""
    return len(_KEYS & {normal(key) for key in record}) >= 2


def read_record(record: Record, file: str, where: str) -> Point:
    """One result."""
    engine = to_text(record.get("backend") or record.get("endpoint_type"))
    point = serving.new_point(
        NAME, file, where, engine if engine in ("vllm", "sglang", "tgi") else None
    )
    fields = Fields(record, point)
    serving.take_model(fields, "model_id", "model", "tokenizer_id")
    serving.read_load(fields)
    serving.read_rates(fields)
    serving.read_latencies(fields)
    serving.read_server(fields)
    serving.read_details(fields)
    fields.take("nominal_input_tokens", "random_input_len", "input_len")
    fields.take("nominal_output_tokens", "random_output_len", "output_len")
    if fields.number("run_number") == -1 or str(record.get("run_number")) == "-1":
        point.say("warm-up", "refused", "run_number -1 is the sweep's warm-up run")
    if not point.has("requests_per_s") and not point.has("duration_s"):
        point.notes.append("no throughput and no duration in the file")
    return point
