"""AIPerf and GenAI-Perf exports, JSON and CSV: one load a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import (
    Fields,
    dig,
    flatten,
    mapping,
    normal,
    sequence,
    to_number,
    to_text,
)
from servefit.importers.point import Point
from servefit.importers.tables import csv_blocks, records

NAME = "AIPerf or GenAI-Perf export"

#: Metric in the long form of its name -> short tags of some versions.
_TAGS = {
    "time_to_first_token": ("ttft",),
    "request_latency": ("e2e_latency",),
    "inter_token_latency": ("itl",),
    "inter_chunk_latency": ("icl",),
    "input_sequence_length": ("isl",),
    "output_sequence_length": ("osl",),
    "output_token_throughput": (),
    "total_token_throughput": (),
    "request_throughput": (),
    "request_count": ("valid_request_count",),
    "error_request_count": (),
    "benchmark_duration": (),
}

#: Unit in the file -> divisor to SI.
TIME_UNITS = {
    "ms": 1e3,
    "milliseconds": 1e3,
    "s": 1.0,
    "sec": 1.0,
    "seconds": 1.0,
    "us": 1e6,
    "microseconds": 1e6,
    "ns": 1e9,
    "nanoseconds": 1e9,
}

Metrics = dict[str, Record]


def recognise(document: Document) -> bool:
    """Its metric names, as JSON keys or in a CSV's first column."""
    if document.kind == "text":
        return bool(
            re.match(r'"?Metric"?,\s*"?(avg|Value)"?\b', document.head.lstrip("\ufeff\n\r "))
        )
    metrics = _metrics(document.first)
    return "request_latency" in metrics or {"request_throughput", "request_count"} <= set(metrics)


def read(document: Document) -> Iterator[Point]:
    """One point; JSON says model and load, CSV does not."""
    if document.kind == "text":
        point = serving.new_point(NAME, document.name, "")
        _read(point, _from_csv(document.text))
        yield point
        return
    for where, record in document.records():
        metrics = _metrics(record)
        if not metrics:
            continue
        point = serving.new_point(NAME, document.name, where)
        _config(point, record)
        if record.get("was_cancelled") is True:
            point.say("completion", "flagged", "the run was cancelled before its end")
        _read(point, metrics)
        _errors(point, record)
        yield point


def _metrics(record: Record) -> Metrics:
    """Metrics by their long names, from ``records`` or the top level."""
    found = {
        normal(k): v
        for k, v in (mapping(record.get("records")) or record).items()
        if isinstance(v, Mapping) and ("avg" in v or "value" in v) and "unit" in v
    }
    metrics: Metrics = {}
    for name, tags in _TAGS.items():
        key = next((k for k in (name, *tags) if k in found), None)
        if key is not None:
            metrics[name] = found[key]
    return metrics


def _from_csv(text: str) -> Metrics:
    metrics: Metrics = {}
    for block in csv_blocks(text):
        for row in records(block):
            match = re.match(r"(.+?)\s*(?:\(([^)]*)\))?$", row.get("Metric", "").strip())
            if match is None:
                continue
            name = normal(match[1])
            name = next((k for k, tags in _TAGS.items() if name in (k, *tags)), "")
            if name:
                stats: dict[str, object] = {k: v for k, v in row.items() if k != "Metric"}
                stats["unit"] = match[2] or ""
                metrics.setdefault(name, stats)
    return metrics


def _read(point: Point, metrics: Metrics) -> None:
    def block(name: str) -> tuple[Fields, float]:
        record = metrics.get(name, {})
        unit = str(record.get("unit", "")).strip().lower()
        return Fields(record, point, f"{name}."), TIME_UNITS.get(unit, 1.0)

    for latency, name in (
        ("e2e", "request_latency"),
        ("ttft", "time_to_first_token"),
        ("tpot", "inter_token_latency"),
        ("itl", "inter_chunk_latency"),
        ("itl", "inter_token_latency"),
    ):
        fields, divisor = block(name)
        fields.take(f"{latency}_mean_s", "avg", "mean", divisor=divisor)
        fields.take(f"{latency}_median_s", "p50", divisor=divisor)
        fields.take(f"{latency}_p99_s", "p99", divisor=divisor)
    if point.has("tpot_mean_s"):
        point.notes.append(
            "inter_token_latency is (E2E - TTFT) / (OL - 1) of each request, then a mean: our TPOT"
        )
    for column, name in (
        ("input_tokens", "input_sequence_length"),
        ("output_tokens", "output_sequence_length"),
        ("output_tokens_per_s", "output_token_throughput"),
        ("requests_per_s", "request_throughput"),
        ("total_tokens_per_s", "total_token_throughput"),
        ("completed", "request_count"),
        ("failed_requests", "error_request_count"),
    ):
        block(name)[0].take(column, "avg", "value", "mean")
    fields, divisor = block("benchmark_duration")
    fields.take("duration_s", "avg", "value", divisor=divisor)
    point.notes.append(
        "output_token_count leaves reasoning tokens out, over fewer requests: not used"
    )


def _config(point: Point, record: Record) -> None:
    config = mapping(record.get("input_config"))
    leaves = {key.rsplit(".", 1)[-1]: (key, value) for key, value in flatten(config, 6)}
    for name in ("model_names", "model", "models"):
        key, value = leaves.get(name, ("", None))
        first = next(iter(sequence(value)), value)
        if isinstance(first, Mapping):
            first = first.get("name")
        if (text := to_text(first)) is not None:
            model, how = serving.model_name(text)
            point.put("model", model, f"input_config.{key}", text, how)
    for column, name in (("concurrency", "concurrency"), ("request_rate_per_s", "request_rate")):
        key, value = leaves.get(name, ("", None))
        value = next(iter(sequence(value)), value)
        number = to_number(value)
        if number:
            point.put(column, number, f"input_config.{key}", value)
    command = to_text(config.get("cli_command")) or str(config.get("cli_command") or "")
    for column, option in (("concurrency", "concurrency"), ("request_rate_per_s", "request-rate")):
        if match := re.search(rf"--{option}[ =]([\d.]+)(?=\s|$)", command):
            point.put(column, to_number(match[1]), "input_config.cli_command", match[0])
    if wanted := to_number(dig(config, "input", "prompt", "output_tokens", "mean")):
        point.put(
            "nominal_output_tokens", wanted, "input_config.input.prompt.output_tokens.mean", wanted
        )


def _errors(point: Point, record: Record) -> None:
    for error in sequence(record.get("error_summary")):
        details = mapping(mapping(error).get("error_details"))
        count = to_number(mapping(error).get("count"))
        if count and details:
            point.notes.append(
                f"{count:.0f} requests: {details.get('type')} ({details.get('code')})"
            )
