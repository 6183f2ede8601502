"""vLLM server logs, V0 and V1: KV cache, memory, effective settings, why a start failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers.document import Document
from servefit.importers.fields import to_number
from servefit.importers.logs import (
    MAX_LOGGED,
    Fact,
    Sampled,
    gibibytes,
    put_sampled,
    say_failure,
    setting,
    switch,
    take_facts,
    text,
)
from servefit.importers.point import Point
from servefit.importers.serving import model_of

NAME = "vLLM server log"

_MARKS = (
    "vLLM API server version",
    "LLM engine (v",
    "GPU KV cache size:",
    "# GPU blocks:",
    "Avg generation throughput:",
    "Maximum concurrency for",
    "(EngineCore",
    "non-default args:",
)


_GIB = r"([\d.]+) ?(?:GiB|GB)"

FACTS = (
    Fact("engine_version", re.compile(r"(?:API server version|LLM engine \(v)\s?([\w.+-]+)"), text),
    Fact("model", re.compile(r"with config: model=('[^']*')"), model_of),
    Fact("model", setting("model"), model_of),
    Fact("dtype", re.compile(r"(?<!_)dtype=(torch\.\w+)"), text),
    Fact("kv_cache_dtype", setting("kv_cache_dtype"), text),
    Fact("tensor_parallel_size", setting("tensor_parallel_size")),
    Fact("pipeline_parallel_size", setting("pipeline_parallel_size")),
    Fact("data_parallel_size", setting("data_parallel_size")),
    Fact("max_num_seqs", setting("max_num_seqs")),
    Fact("max_num_batched_tokens", re.compile(r"enabled with max_num_batched_tokens=(\d+)")),
    Fact("max_num_batched_tokens", setting("max_num_batched_tokens")),
    Fact("chunked_prefill", re.compile(r"chunked_prefill_enabled=(True|False)"), switch),
    Fact("chunked_prefill", setting("enable_chunked_prefill"), switch),
    Fact("gpu_memory_utilization", setting("gpu_memory_utilization")),
    Fact("block_size", setting("block_size")),
    Fact("max_model_len", re.compile(r"max_(?:model_len|seq_len)['\"]?[=:] ?(\d+)")),
    Fact("num_gpu_blocks", re.compile(r"# (?:GPU|cuda) blocks: ([\d,]+)")),
    Fact("kv_capacity_tokens", re.compile(r"GPU KV cache size: ([\d,]+) tokens")),
    Fact(
        "kv_cache_bytes",
        re.compile(rf"(?:Available KV cache memory: |kv_cache_size=){_GIB}"),
        gibibytes,
        "GiB x 2^30",
    ),
    Fact(
        "kv_cache_bytes", re.compile(rf"reserved for KV Cache is {_GIB}"), gibibytes, "GiB x 2^30"
    ),
    Fact(
        "weights_bytes",
        re.compile(rf"(?:Loading model weights took|Model loading took|model weights take) {_GIB}"),
        gibibytes,
        "GiB x 2^30",
    ),
    Fact(
        "activation_bytes",
        re.compile(rf"activation peak memory takes {_GIB}"),
        gibibytes,
        "GiB x 2^30",
    ),
    Fact("peak_torch_bytes", re.compile(rf"peak_torch_memory={_GIB}"), gibibytes, "GiB x 2^30"),
    Fact(
        "gpu_memory_bytes", re.compile(rf"total_gpu_memory=?\s?\(?{_GIB}"), gibibytes, "GiB x 2^30"
    ),
    Fact(
        "max_full_length_requests",
        re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ),
)

#: What ends a start: pattern -> the cause in words.
FAILURES = (
    (
        re.compile(r"No available memory for the cache blocks.*"),
        "no memory is left for the KV cache",
    ),
    (
        re.compile(r"To serve at least one request with the models?'?s? max seq len.*"),
        "one full request does not fit the KV cache: lower max_model_len",
    ),
    (
        re.compile(r"max seq len \(\d+\) is larger than the maximum number of tokens.*"),
        "one full request does not fit the KV cache: lower max_model_len",
    ),
    (
        re.compile(r"Free memory on device.*less than desired GPU memory utilization.*"),
        "another process holds GPU memory",
    ),
    (
        re.compile(r"(?:torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory)[^\n]*"),
        "GPU memory ran out",
    ),
    (re.compile(r"Bfloat16 is only supported on GPUs.*"), "the GPU has no bfloat16"),
    (
        re.compile(r"attention heads \(\d+\) must be divisible by tensor parallel size.*"),
        "the heads do not divide by tensor_parallel_size",
    ),
    (re.compile(r"address already in use"), "the port is taken"),
    (
        re.compile(r"(?:Engine core initialization failed|Failed core proc)[^\n]*"),
        "the engine core did not start",
    ),
)

SPECULATION = (
    Fact("speculative_tokens", re.compile(r"num_spec(?:ulative)?_tokens['\"]?[=:] ?(\d+)")),
)

#: Settings of the draft model, which has a name and a parallelism of its own.
_DRAFT = re.compile(r"speculative_config['\"]?[=:] ?(?:\{[^}]*\}|\w+\([^)]*\))")

_STATS = re.compile(
    r"Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    r"Running: (\d+) reqs.*?(?:Pending|Waiting): (\d+) reqs(?:.*?GPU KV cache usage: ([\d.]+)%)?"
)


def recognise(document: Document) -> bool:
    """Lines that only vLLM logs."""
    return document.kind == "text" and any(mark in document.head for mark in _MARKS)


def read(document: Document) -> Iterator[Point]:
    """One state: a log tells what the server can hold, not how fast requests are."""
    point = Point(NAME, document.name, is_run=False)
    point.put("engine", "vllm", "format")
    sampled = {
        name: Sampled()
        for name in ("generation_tokens_per_s", "running_requests", "waiting_requests", "kv_usage")
    }
    for number, long_line in enumerate(document.source.lines(), start=1):
        line = long_line[:MAX_LOGGED]
        take_facts(point, _DRAFT.sub("", line), number, FACTS)
        take_facts(point, line, number, SPECULATION)
        if match := _STATS.search(line):
            _sample(sampled, match)
        for pattern, cause in FAILURES:
            if found := pattern.search(line):
                say_failure(point, number, cause, found[0])
    for name, values in sampled.items():
        put_sampled(point, name, values, "periodic statistics")
    if blocks := point.numbers("num_gpu_blocks", "block_size"):
        point.derive("kv_capacity_tokens", blocks[0] * blocks[1], "num_gpu_blocks x block_size")
    if peak := point.numbers("peak_torch_bytes", "weights_bytes"):
        point.derive("activation_bytes", max(peak[0] - peak[1], 0.0), "peak_torch - weights")
    if point.has("speculative_tokens"):
        point.put("speculative_decoding", True, "num_speculative_tokens")
    if (replicas := point.number("data_parallel_size")) and replicas > 1:
        point.say(
            "replicas", "flagged", f"{replicas:.0f} data-parallel engines: capacity is of one"
        )
    yield point


def _sample(sampled: dict[str, Sampled], match: re.Match[str]) -> None:
    """Lines of an idle server are left out."""
    running = to_number(match[3]) or 0.0
    if running <= 0:
        return
    sampled["generation_tokens_per_s"].add(to_number(match[2]) or 0.0)
    sampled["running_requests"].add(running)
    sampled["waiting_requests"].add(to_number(match[4]) or 0.0)
    if (usage := to_number(match[5])) is not None:
        sampled["kv_usage"].add(usage / 100)
