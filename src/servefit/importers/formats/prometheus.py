"""Prometheus text of ``/metrics``: a server's state; two of them make a run (`pairs`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from servefit.importers.document import Document
from servefit.importers.fields import to_number
from servefit.importers.point import Point
from servefit.importers.serving import model_name
from servefit.profiling.engines import ENGINES, read_metrics
from servefit.profiling.prometheus import Sample, parse_metrics

NAME = "Prometheus /metrics"

#: Engine -> latency -> histograms in seconds, newest name first.
HISTOGRAMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "ttft": ("vllm:time_to_first_token_seconds",),
        "tpot": (
            "vllm:request_time_per_output_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:time_per_output_token_seconds",
        ),
        "e2e": ("vllm:e2e_request_latency_seconds",),
        "queue": ("vllm:request_queue_time_seconds",),
    },
    "sglang": {
        "ttft": ("sglang:time_to_first_token_seconds",),
        "tpot": ("sglang:time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
        "e2e": ("sglang:e2e_request_latency_seconds",),
        "queue": ("sglang:queue_time_seconds",),
    },
    "trtllm-serve": {
        "ttft": ("trtllm_time_to_first_token_seconds",),
        "tpot": ("trtllm_time_per_output_token_seconds",),
        "e2e": ("trtllm_e2e_request_latency_seconds",),
        "queue": ("trtllm_request_queue_time_seconds",),
    },
    "tgi": {
        "tpot": ("tgi_request_mean_time_per_token_duration",),
        "e2e": ("tgi_request_duration",),
        "queue": ("tgi_request_queue_duration",),
    },
}

#: Quantities of ``trtllm-serve``'s own page; behind Triton TensorRT-LLM shows others.
TRTLLM_SERVE = {
    "running": "trtllm_num_requests_running",
    "waiting": "trtllm_num_requests_waiting",
    "kv_usage": "trtllm_kv_cache_utilization",
    "prompt_tokens": "trtllm_prompt_tokens_total",
    "generation_tokens": "trtllm_generation_tokens_total",
}

_GAUGES = {
    "running": "running_requests",
    "waiting": "waiting_requests",
    "kv_usage": "kv_usage",
    "kv_used_tokens": "kv_used_tokens",
    "kv_capacity_tokens": "kv_capacity_tokens",
    "num_gpu_blocks": "num_gpu_blocks",
    "block_size": "block_size",
    "max_num_seqs": "max_num_seqs",
    "preemptions": "preemptions",
}
_COUNTERS = ("prompt_tokens", "generation_tokens", "preemptions")
_SAMPLE = re.compile(r"^[a-zA-Z_:][\w:]*(\{.*\})? [-+.\dNaInfe]+( \d+)?\s*$", re.MULTILINE)


def recognise(document: Document) -> bool:
    """Text whose lines are samples, some of an engine that is known."""
    if document.kind != "text" or not _SAMPLE.search(document.head):
        return False
    return _engine(document.head) is not None or _engine(document.text) is not None


def _engine(text: str) -> str | None:
    prefixes = {
        "vllm": "vllm:",
        "sglang": "sglang[:_]",
        "llama.cpp": "llamacpp:",
        "tgi": "tgi_",
        "tensorrt-llm": "nv_trt_llm_",
        "trtllm-serve": "trtllm_",
    }
    for engine, prefix in prefixes.items():
        if re.search(rf"^{prefix}\w+(\{{| )", text, re.MULTILINE):
            return engine
    return None


def read(document: Document) -> Iterator[Point]:
    """The state: capacity, load of the moment, and means since the server started."""
    text = document.text
    engine = _engine(text)
    if engine is None:
        return
    point = Point(NAME, document.name, is_run=False)
    point.put("engine", "tensorrt-llm" if engine == "trtllm-serve" else engine, "metric names")
    samples = parse_metrics(text)
    _model(point, samples)
    for quantity, (name, value) in _quantities(engine, text, samples).items():
        if quantity in _GAUGES:
            point.put(_GAUGES[quantity], value, name, value)
        if quantity in _COUNTERS:
            point.put(f"_{quantity}", value, name)
    used = [s.value for s in samples if s.labels.get("kv_cache_block_type") == "used"]
    if used:
        point.put("kv_used_blocks", sum(used), "kv_cache_block_type used", used[0])
    _cache_config(point, samples)
    _capacity(point)
    for latency, names in HISTOGRAMS.get(engine, {}).items():
        _histogram(point, samples, latency, names)
    point.say(
        "state",
        "flagged",
        "one snapshot is a state, and its means are over all loads since the server started: give "
        "a second snapshot to get a run",
    )
    yield point


def _quantities(engine: str, text: str, samples: Sequence[Sample]) -> dict[str, tuple[str, float]]:
    """Gauges and counters by quantity: the metric's name and its value over all label sets."""
    if engine in ENGINES:
        values = read_metrics(text, engine)
        return {q: (ENGINES[engine][q].names[0], value) for q, value in values.items()}
    found = {}
    for quantity, name in TRTLLM_SERVE.items():
        values_of = [s.value for s in samples if s.name == name]
        if values_of:
            total = sum(values_of)
            found[quantity] = (name, total / len(values_of) if quantity == "kv_usage" else total)
    return found


def _model(point: Point, samples: Sequence[Sample]) -> None:
    keys = ("model_name", "name")  # SGLang's first versions write the latter
    names = {n for s in samples for k in keys if (n := s.labels.get(k))}
    if len(names) == 1:
        name, how = model_name(names.pop())
        point.put("model", name, "label model_name", name, how)
    elif names:
        point.notes.append(f"several models: {', '.join(sorted(names))[:100]}")


def _cache_config(point: Point, samples: Sequence[Sample]) -> None:
    """vLLM's ``cache_config_info`` carries settings as labels, numbers in strings."""
    labels = next((s.labels for s in samples if s.name == "vllm:cache_config_info"), {})
    for column in ("num_gpu_blocks", "block_size", "gpu_memory_utilization"):
        value = to_number(labels.get(column))
        point.put(column, value, f"cache_config_info {column}", labels.get(column))
    dtype = labels.get("cache_dtype")
    if dtype and dtype != "auto":
        point.put("kv_cache_dtype", dtype, "cache_config_info cache_dtype", dtype)


def _capacity(point: Point) -> None:
    if blocks := point.numbers("num_gpu_blocks", "block_size"):
        how = "num_gpu_blocks x block_size"
        point.derive("kv_capacity_tokens", blocks[0] * blocks[1], how)
    used = point.numbers("kv_used_tokens", "kv_usage")
    if used and 0 < used[1] <= 1:
        point.derive("kv_capacity_tokens", used[0] / used[1], "used tokens / token usage (rounded)")
    share = point.number("kv_usage")
    if share is not None and share > 1:
        point.say("kv usage", "flagged", f"kv usage {share:g} is no fraction")
    in_use = point.numbers("kv_used_blocks", "num_gpu_blocks")
    if in_use and share is not None and in_use[1] > 0:
        implied = in_use[0] / in_use[1]
        if abs(implied - share) > 0.02:
            blocks_used = f"{in_use[0]:.0f} of {in_use[1]:.0f} blocks in use are {implied:.2g}"
            point.say("kv usage", "flagged", f"{blocks_used}, the fraction says {share:g}")


def _histogram(
    point: Point, samples: Sequence[Sample], latency: str, names: tuple[str, ...]
) -> None:
    """Sum and count of a histogram over all label sets; quantiles are not guessed from buckets."""
    for name in names:
        total = [s.value for s in samples if s.name == f"{name}_sum"]
        count = [s.value for s in samples if s.name == f"{name}_count"]
        if not total or not count or not math.isfinite(sum(total)) or sum(count) <= 0:
            continue
        point.put(f"_{latency}_sum_s", sum(total), f"{name}_sum")
        point.put(f"_{latency}_count", sum(count), f"{name}_count")
        column = "queue_time_mean_s" if latency == "queue" else f"{latency}_mean_s"
        how = f"_sum / _count of {sum(count):.0f}, since the server started"
        point.put(column, sum(total) / sum(count), name, f"{sum(total):.6g}", how)
        _overflow(point, samples, name, latency)
        return


def _overflow(point: Point, samples: Sequence[Sample], name: str, latency: str) -> None:
    """Where most observations lie above the last finite bucket, quantiles are unknowable."""
    buckets: dict[float, float] = {}
    for sample in samples:
        edge = sample.labels.get("le", "")
        if sample.name == f"{name}_bucket" and edge:
            upper = math.inf if "inf" in edge.lower() else to_number(edge)
            if upper is not None:
                buckets[upper] = buckets.get(upper, 0.0) + sample.value
    finite = [edge for edge in buckets if math.isfinite(edge)]
    if not finite or math.inf not in buckets or buckets[math.inf] <= 0:
        return
    above = 1 - buckets[max(finite)] / buckets[math.inf]
    if above > 0.01:
        point.say(
            "percentiles",
            "flagged",
            f"{above:.0%} of {latency.upper()} are above the last bucket of {max(finite):g} s: "
            + ("its median and quantiles are unknowable" if above > 0.5 else "so is its tail"),
        )
