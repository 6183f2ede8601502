"""SGLang server logs: token pool, memory, effective settings, decode batches, failures."""

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
    take_facts,
    text,
)
from servefit.importers.point import Point
from servefit.importers.serving import model_of

NAME = "SGLang server log"

_MARKS = (
    "server_args=ServerArgs(",
    "max_total_num_tokens=",
    "Decode batch",
    "KV Cache is allocated",
)
_GB = r"([\d.]+) GB"

FACTS = (
    Fact("model", setting("model_path"), model_of),
    Fact("tensor_parallel_size", setting("tp_size")),
    Fact("data_parallel_size", setting("dp_size")),
    Fact("dtype", re.compile(r"Load weight end\..*?dtype=(torch\.\w+)"), text),
    Fact("dtype", setting("dtype"), text),
    Fact("kv_cache_dtype", re.compile(r"Using KV cache dtype: (torch\.\w+)"), text),
    Fact("kv_cache_dtype", setting("kv_cache_dtype"), text),
    Fact("kv_capacity_tokens", re.compile(r"(?<![\w])max_total_num_tokens=(\d+)")),
    Fact("kv_capacity_tokens", re.compile(r"KV Cache is allocated\..*?#tokens: (\d+)")),
    Fact("max_num_seqs", re.compile(r"max_total_num_tokens=\d+.*max_running_requests=(\d+)")),
    Fact("max_num_seqs", setting("max_running_requests")),
    Fact("chunked_prefill_tokens", re.compile(r"(?<![\w])chunked_prefill_size=(-?\d+)")),
    Fact("max_model_len", re.compile(r"(?<![\w])context_len=(\d+)")),
    Fact("block_size", setting("page_size")),
    Fact("mem_fraction_static", setting("mem_fraction_static")),
    Fact(
        "weights_bytes",
        re.compile(rf"Load weight end\..*?mem usage={_GB}"),
        gibibytes,
        "GB of 2^30",
    ),
    Fact("k_cache_bytes", re.compile(rf"K size: {_GB}"), gibibytes, "GB of 2^30"),
    Fact("v_cache_bytes", re.compile(rf"V size: {_GB}"), gibibytes, "GB of 2^30"),
    Fact("speculative_algorithm", setting("speculative_algorithm"), text),
    Fact("disaggregation_mode", setting("disaggregation_mode"), text),
)

FAILURES = (
    (re.compile(r"Not enough memory\.[^\n]*"), "no memory is left for the KV cache"),
    (
        re.compile(r"(?:torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory)[^\n]*"),
        "GPU memory ran out",
    ),
    (
        re.compile(r"Decode out of memory happened[^\n]*"),
        "decode ran out of KV cache: requests were retracted",
    ),
    (re.compile(r"KV cache pool is full[^\n]*"), "the KV cache was full: requests were retracted"),
    (re.compile(r"address already in use"), "the port is taken"),
)

_DECODE = re.compile(
    r"Decode batch[.,].*?#running-req: (\d+).*?token usage: ([\d.]+).*?"
    r"gen throughput \(token/s\): ([\d.]+)(?:.*?#queue-req: (\d+))?"
)
_ACCEPTED = re.compile(r"accept len: ([\d.]+)")


def recognise(document: Document) -> bool:
    """Lines that only SGLang logs."""
    return document.kind == "text" and any(mark in document.head for mark in _MARKS)


def read(document: Document) -> Iterator[Point]:
    """One state: what the server can hold, and its decode batches as sampled."""
    point = Point(NAME, document.name, is_run=False)
    point.put("engine", "sglang", "format")
    names = ("running_requests", "kv_usage", "generation_tokens_per_s", "waiting_requests")
    sampled = {name: Sampled() for name in names}
    for number, long_line in enumerate(document.source.lines(), start=1):
        line = long_line[:MAX_LOGGED]
        take_facts(point, line, number, FACTS)
        if match := _DECODE.search(line):
            for name, group in zip(names, match.groups(), strict=True):
                if (value := to_number(group)) is not None:
                    sampled[name].add(value)
            if accepted := _ACCEPTED.search(line):
                point.put("speculative_decoding", True, f"line {number}", accepted[0])
        for pattern, cause in FAILURES:
            if found := pattern.search(line):
                say_failure(point, number, cause, found[0])
    for name, values in sampled.items():
        put_sampled(point, name, values, "decode batches")
    chunk = point.number("chunked_prefill_tokens")
    if chunk is not None:
        point.put("chunked_prefill", chunk > 0, "chunked_prefill_size", chunk)
    if point.has("speculative_algorithm"):
        point.put("speculative_decoding", True, "speculative_algorithm")
    mode = point.shown("disaggregation_mode")
    if mode and mode != "null":
        point.put("disaggregated", True, "disaggregation_mode", mode)
    if (replicas := point.number("data_parallel_size")) and replicas > 1:
        point.say("replicas", "flagged", f"{replicas:.0f} data-parallel ranks: capacity is of one")
    yield point
