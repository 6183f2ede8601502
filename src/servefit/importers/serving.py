"""The keys that vLLM's and SGLang's serving benchmarks share, and the many that copy them."""

from __future__ import annotations

import re

from servefit.importers.fields import Fields, floats, is_infinite, sequence, to_number
from servefit.importers.point import Point

#: Latency -> how the tools call it in their keys.
LATENCIES = {
    "ttft": ("ttft",),
    "tpot": ("tpot",),
    "itl": ("itl",),
    "e2e": ("e2el", "e2e_latency", "e2e", "request_latency"),
}

#: Settings of the server that sweeps and wrappers write next to the results.
_SERVER_NUMBERS = {
    "tensor_parallel_size": ("tensor_parallel_size", "tp_size", "tp"),
    "max_num_seqs": ("max_num_seqs", "max_running_requests"),
    "max_num_batched_tokens": ("max_num_batched_tokens",),
    "gpu_memory_utilization": ("gpu_memory_utilization",),
    "block_size": ("block_size",),
}

_CONCURRENCY = ("max_concurrency", "maximum_request_concurrency", "max_request_concurrency")

#: Share of answers without a token above which the means are of another load.
EMPTY_REFUSED = 0.05

_CACHE = re.compile(r"models--([^/]+)--([^/]+)(?:/snapshots/[^/]+)?/?$")


def model_name(path: str) -> tuple[str, str]:
    """A model's name from what a tool was given, and how: local paths keep ``owner/name``.

    ``.../hub/Qwen/Qwen2___5-7B-Instruct`` is ``Qwen/Qwen2.5-7B-Instruct`` (ModelScope writes dots
    as three underscores); ``.../models--org--name/snapshots/<hash>`` is ``org/name``.
    """
    if match := _CACHE.search(path):
        return f"{match[1]}/{match[2]}", "HuggingFace cache folder"
    if not path.startswith(("/", ".", "~")) and not re.match(r"[A-Za-z]:\\", path):
        return path, ""
    parts = [part.replace("___", ".") for part in re.split(r"[/\\]", path) if part]
    if not parts:
        return path, ""
    owner = parts[-2] if len(parts) > 2 and parts[-2] not in ("models", "model", "hub") else ""
    if not re.search(r"[A-Z]", owner) and not re.search(r"modelscope|hub", path):
        owner = ""
    return f"{owner}/{parts[-1]}" if owner else parts[-1], "the end of a local path"


def model_of(text: str) -> str | None:
    """The model of a quoted setting; ``None`` for what says none."""
    bare = text.strip().strip("'\"")
    return model_name(bare)[0] if bare and bare.lower() != "none" else None


def take_model(fields: Fields, *keys: str) -> None:
    """The model's name, from a local path if need be."""
    key = next((k for k in keys if fields.text(k)), None)
    text = fields.text(key) if key else None
    if key and text:
        name, how = model_name(text)
        fields.point.put("model", name, fields.at + key, text, how)


def read_load(fields: Fields) -> None:
    """What the client was told to do, and how much of it was done."""
    point = fields.point
    fields.take("num_requests", "num_prompts", "num_requests")
    fields.take("completed", "completed", "successful_requests")
    fields.take("failed_requests", "failed", "failed_requests")
    fields.take("duration_s", "duration", "benchmark_duration", "benchmark_duration_s")
    concurrency = fields.take("concurrency", *_CONCURRENCY)
    key, rate = fields.raw("request_rate", "traffic_request_rate")
    if is_infinite(rate):
        if concurrency is None:
            point.put("_all_at_once", True, fields.at + key, rate)
        point.notes.append(f"{key} = inf: requests are sent as fast as the concurrency lets them")
    elif key:
        fields.take("request_rate_per_s", key)
    fields.take("total_input_tokens", "total_input_tokens", "total_input")
    fields.take(
        "total_output_tokens", "total_output_tokens", "total_generated_tokens", "total_output"
    )
    fields.take_text("measured_at", "date")


def read_rates(fields: Fields) -> None:
    """Requests and tokens per second."""
    fields.take(
        "requests_per_s", "request_throughput", "request_inthroughput", "request_throughput_req_s"
    )
    fields.take(
        "output_tokens_per_s",
        "output_throughput",
        "output_token_throughput",
        "output_token_throughput_tok_s",
    )
    fields.take(
        "total_tokens_per_s",
        "total_token_throughput",
        "total_throughput",
        "total_token_throughput_tok_s",
        "total_throughput_tok_s",
    )


def read_latencies(fields: Fields, unit: str = "ms", divisor: float = 1e3) -> None:
    """Means, medians and 99th percentiles of every latency."""
    for latency, names in LATENCIES.items():
        for statistic, prefixes in (
            ("mean", ("mean", "avg", "average")),
            ("median", ("median", "p50")),
            ("p99", ("p99",)),
        ):
            keys = [f"{p}_{n}_{unit}" for n in names for p in prefixes]
            keys += [f"{n}_{p}_{unit}" for n in names for p in prefixes]
            fields.take(f"{latency}_{statistic}_s", *keys, divisor=divisor)


def read_server(fields: Fields) -> None:
    """Settings of the server, where they stand next to the results."""
    for column, keys in _SERVER_NUMBERS.items():
        fields.take(column, *keys)
    fields.take_text("gpu", "gpu", "gpu_type", "gpu_name", "hardware")
    fields.take_text("kv_cache_dtype", "kv_cache_dtype")
    for key in ("spec_decode_acceptance_length", "accept_length", "acceptance_length"):
        name, raw = fields.raw(key)
        value = to_number(raw)
        if value is not None and value > 1:
            fields.point.put(
                "speculative_decoding", True, fields.at + name, raw, "> 1 token a step"
            )


def read_details(fields: Fields) -> None:
    """Per-request arrays: exact E2E where the summary lacks it, and lengths.

    A request's E2E is its TTFT and all its gaps.
    """
    point = fields.point
    ttfts, gaps = sequence(fields.raw("ttfts")[1]), sequence(fields.raw("itls")[1])
    errors = sequence(fields.raw("errors")[1])
    good = [i for i in range(len(ttfts)) if not (i < len(errors) and errors[i])]
    _empty_answers(fields, len(ttfts))
    for side in ("input", "output"):
        lengths = sequence(fields.raw(f"{side}_lens")[1])
        if lengths and len(lengths) == len(ttfts):
            values = floats([lengths[i] for i in good])
            if values:
                how = f"mean of {len(values)} requests"
                point.put(f"{side}_tokens", sum(values) / len(values), f"{side}_lens", "", how)
    if point.has("e2e_mean_s") or not ttfts or len(gaps) != len(ttfts):
        return
    times = [
        first + sum(floats(gaps[i]))
        for i in good
        if (first := to_number(ttfts[i])) is not None and first > 0
    ]
    if times:
        how = f"mean over {len(times)} requests of TTFT + all gaps"
        point.put("e2e_mean_s", sum(times) / len(times), "ttfts, itls", "", how)


def _empty_answers(fields: Fields, requests: int) -> None:
    """Requests that the tool counts as completed though not one token came back."""
    lengths = sequence(fields.raw("output_lens")[1])
    empty = sum(1 for length in lengths if to_number(length) == 0)
    completed = fields.point.number("completed")
    if empty and completed is not None and len(lengths) == requests:
        counted = max(completed - (requests - empty), 0.0)
        if counted > 0:
            share = counted / completed
            fields.point.say(
                "completion",
                "refused" if share > EMPTY_REFUSED else "flagged",
                f"{counted:.0f} of {completed:.0f} completed requests have no output token "
                f"({share:.0%}): they failed, and every mean and rate counts them",
            )


def new_point(form: str, file: str, where: str, engine: str | None = None) -> Point:
    """A point of a serving run."""
    point = Point(form, file, where)
    point.put("mode", "serving", "format")
    point.put("engine", engine, "format")
    return point
