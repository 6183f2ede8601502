"""``sglang.bench_serving`` JSON Lines, with and without ``server_info``."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, dig, mapping, normal, sequence
from servefit.importers.point import Point

NAME = "SGLang bench_serving"

_KEYS = {
    "total_output_tokens_retokenized",
    "mean_e2e_latency_ms",
    "random_range_ratio",
    "server_info",
    "sharegpt_output_len",
}


def recognise(document: Document) -> bool:
    """At least two of the keys that only it writes."""
    return _is_result(document.first)


def _is_result(record: Record) -> bool:
    return len(_KEYS & {normal(key) for key in record}) >= 2


def read(document: Document) -> Iterator[Point]:
    """A point a line. ``concurrency`` is measured, requests/s x E2E: not the client's own."""
    for where, record in document.records():
        if not _is_result(record):
            continue
        point = serving.new_point(NAME, document.name, where, "sglang")
        fields = Fields(record, point)
        serving.take_model(fields, "model_id", "model", "model_path")
        serving.read_load(fields)
        serving.read_rates(fields)
        serving.read_latencies(fields)
        serving.read_server(fields)
        serving.read_details(fields)
        fields.take("measured_concurrency", "concurrency")
        _nominal(fields)
        _server(fields)
        yield point


def _nominal(fields: Fields) -> None:
    """The random lengths asked for; other data sets carry those keys without using them."""
    data_set = fields.text("dataset_name") or "random"
    if not data_set.startswith(("random", "generated", "image")):
        fields.point.notes.append(f"dataset {data_set}: random_input_len is not used by it")
        return
    fields.take("nominal_input_tokens", "random_input_len", "random_input")
    fields.take("nominal_output_tokens", "random_output_len", "random_output")
    ratio = fields.number("random_range_ratio")
    if ratio is not None and ratio < 1:
        note = (
            f"random_range_ratio {ratio:g}: lengths are uniform from {ratio:g} x nominal to nominal"
        )
        fields.point.notes.append(note)


def _server(fields: Fields) -> None:
    """Settings of the server under ``server_info``, as started and as in effect."""
    info = fields.below("server_info")
    serving.take_model(info, "model_path", "served_model_name")
    info.take("tensor_parallel_size", "tp_size", "tp")
    info.take("max_num_seqs", "max_running_requests")
    info.take("block_size", "page_size")
    info.take("kv_capacity_tokens", "max_total_num_tokens", "max_total_tokens")
    info.take_text("engine_version", "version")
    for column, key in (("dtype", "dtype"), ("kv_cache_dtype", "kv_cache_dtype")):
        if info.text(key) != "auto":
            info.take_text(column, key)
    point = fields.point
    if info.text("speculative_algorithm"):
        point.put("speculative_decoding", True, "server_info.speculative_algorithm")
    if info.text("disaggregation_mode") not in (None, "null"):
        point.put("disaggregated", True, "server_info.disaggregation_mode")
    replicas = info.number("dp_size")
    if replicas and replicas > 1 and not info.record.get("enable_dp_attention"):
        point.say("replicas", "flagged", f"dp_size {replicas:.0f}: the rates are of all replicas")
    states = sequence(dig(info.record, "internal_states"))
    for i, state in enumerate(states[:1]):
        inner = Fields(mapping(state), point, f"server_info.internal_states[{i}].")
        inner.take("max_num_seqs", "effective_max_running_requests_per_dp", "max_running_requests")
        inner.take("kv_capacity_tokens", "max_total_num_tokens")
        Fields(mapping(inner.raw("memory_usage")[1]), point, f"{inner.at}memory_usage.").take(
            "kv_capacity_tokens", "token_capacity"
        )
