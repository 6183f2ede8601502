"""``trtllm-bench`` reports (``--report_json``) and the console block of the same numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, dig, mapping, normal, to_number
from servefit.importers.point import Point

NAME = "trtllm-bench report"

_LINE = re.compile(r"(?:\[[^\]]*\]\s*)*([A-Za-z][^:]{2,60}?):\s+(.+?)\s*$")

#: Console label -> place in the report.
_CONSOLE = {
    "model": ("engine", "model"),
    "tensorrt_llm_version": ("engine", "version"),
    "dtype": ("engine", "dtype"),
    "kv_cache_dtype": ("engine", "kv_cache_dtype"),
    "tp_size": ("world_info", "tp_size"),
    "max_runtime_batch_size": ("world_info", "max_batch_size"),
    "max_runtime_tokens": ("world_info", "max_num_tokens"),
    "number_of_requests": ("request_info", "num_requests"),
    "number_of_concurrent_requests": ("request_info", "avg_num_concurrent_requests"),
    "average_input_length_tokens": ("request_info", "avg_input_length"),
    "average_output_length_tokens": ("request_info", "avg_output_length"),
    "request_throughput_req_sec": ("performance", "request_throughput_req_s"),
    "total_output_throughput_tokens_sec": ("performance", "system_output_throughput_tok_s"),
    "total_token_throughput_tokens_sec": ("performance", "system_total_throughput_tok_s"),
    "total_latency_ms": ("performance", "total_latency_ms"),
    "average_request_latency_ms": ("performance", "avg_request_latency_ms"),
    "average_time_to_first_token_ttft_ms": ("streaming_metrics", "avg_ttft_ms"),
    "average_time_per_output_token_tpot_ms": ("streaming_metrics", "avg_tpot_ms"),
}


def recognise(document: Document) -> bool:
    """The report's sections, or the console's heading."""
    if document.kind == "text":
        return any("= PERFORMANCE OVERVIEW" in line for line in document.source.lines())
    return {"world_info", "request_info", "performance"} <= set(document.first)


def read(document: Document) -> Iterator[Point]:
    """One point a report; latencies hold the wait for a seat, as requests are issued at once."""
    if document.kind == "text":
        yield _point(_from_console(document), document.name, "")
        return
    for where, record in document.records():
        if "performance" in record:
            yield _point(record, document.name, where)


def _from_console(document: Document) -> Record:
    report: dict[str, dict[str, object]] = {}
    for line in document.source.lines():
        if match := _LINE.match(line):
            place = _CONSOLE.get(normal(match[1]))
            if place is not None:
                report.setdefault(place[0], {})[place[1]] = match[2]
    return report


def _point(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where, "tensorrt-llm")
    engine, world, asked, done, stream = (
        Fields(mapping(record.get(key)), point, f"{key}.")
        for key in ("engine", "world_info", "request_info", "performance", "streaming_metrics")
    )
    serving.take_model(engine, "model", "model_path")
    engine.take_text("engine_version", "version")
    engine.take_text("dtype", "dtype")
    kv_dtype = (engine.text("kv_cache_dtype") or "").lower()
    if kv_dtype and kv_dtype != "auto":
        point.put("kv_cache_dtype", kv_dtype, "engine.kv_cache_dtype", kv_dtype)
    Fields(mapping(record.get("machine")), point, "machine.").take_text("gpu", "name")
    world.take("tensor_parallel_size", "tp_size")
    world.take("max_num_seqs", "max_batch_size")
    world.take("max_num_batched_tokens", "max_num_tokens")
    requests = asked.take("num_requests", "num_requests")
    point.put("completed", requests, "request_info.num_requests", "", "offline: all complete")
    asked.take("input_tokens", "avg_input_length")
    asked.take("output_tokens", "avg_output_length")
    asked.take("measured_concurrency", "avg_num_concurrent_requests")
    done.take("duration_s", "total_latency_ms", divisor=1e3)
    done.take("requests_per_s", "request_throughput_req_s")
    done.take("output_tokens_per_s", "system_output_throughput_tok_s")
    done.take("total_tokens_per_s", "system_total_throughput_tok_s")
    done.take("e2e_mean_s", "avg_request_latency_ms", divisor=1e3)
    percentiles = done.below("request_latency_percentiles_ms")
    percentiles.take("e2e_median_s", "p50", divisor=1e3)
    percentiles.take("e2e_p99_s", "p99", divisor=1e3)
    for latency in ("ttft", "tpot"):
        stream.take(f"{latency}_mean_s", f"avg_{latency}_ms", divisor=1e3)
        stream.below(f"{latency}_percentiles").take(f"{latency}_median_s", "p50", divisor=1e3)
        stream.below(f"{latency}_percentiles").take(f"{latency}_p99_s", "p99", divisor=1e3)
    if mapping(record.get("decoding_stats")):
        mode = dig(record, "decoding_stats", "mode")
        point.put("speculative_decoding", True, "decoding_stats", mode)
    pipeline = to_number(world.raw("pp_size")[1])
    if pipeline and pipeline > 1:
        point.say("parallelism", "flagged", f"pp_size {pipeline:.0f}: pipeline-parallel")
    point.notes.append("output_throughput_per_gpu and per_user are not used")
    return point
