"""What each engine calls its metrics.

Names as the engines document them: vLLM (V0: to 0.8; V1: since), SGLang, llama.cpp's server, TGI,
and TensorRT-LLM behind Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from servefit.profiling.prometheus import Sample, parse_metrics


@dataclass(frozen=True)
class Metric:
    """A metric: the names that it goes by, newest first, and the labels it must have."""

    names: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)


def _metric(*names: str, **labels: str) -> Metric:
    return Metric(names, labels)


_TRT_REQUESTS = "nv_trt_llm_request_metrics"
_TRT_KV = "nv_trt_llm_kv_cache_block_metrics"

#: engine -> quantity -> metric. Gauges: running, waiting, kv_usage (a fraction), kv_used_tokens,
#: and the settings kv_capacity_tokens, num_gpu_blocks, block_size, max_num_seqs. Counters: the
#: rest. Triton's ``nv_inference_queue_duration_us`` is left out: TensorRT-LLM queues requests
#: inside, where Triton does not see them wait.
ENGINES: Mapping[str, Mapping[str, Metric]] = {
    "vllm": {
        "running": _metric("vllm:num_requests_running"),
        "waiting": _metric("vllm:num_requests_waiting"),
        "kv_usage": _metric("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "preemptions": _metric("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "prompt_tokens": _metric("vllm:prompt_tokens_total"),
        "generation_tokens": _metric("vllm:generation_tokens_total"),
        "queue_time_s": _metric("vllm:request_queue_time_seconds_sum"),
        "queue_count": _metric("vllm:request_queue_time_seconds_count"),
        "service_time_s": _metric("vllm:request_inference_time_seconds_sum"),
        "service_count": _metric("vllm:request_inference_time_seconds_count"),
        "prefill_time_s": _metric("vllm:request_prefill_time_seconds_sum"),
        "prefill_count": _metric("vllm:request_prefill_time_seconds_count"),
        "cache_queries": _metric(
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_queries",
            "vllm:gpu_prefix_cache_queries_total",  # V1 of 0.8 and 0.9: in blocks at first
            "vllm:gpu_prefix_cache_queries",
        ),
        "cache_hits": _metric(
            "vllm:prefix_cache_hits_total",
            "vllm:prefix_cache_hits",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_hits",
        ),
        "drafts": _metric("vllm:spec_decode_num_draft_tokens_total"),
    },
    "sglang": {
        "running": _metric("sglang:num_running_reqs"),
        "waiting": _metric("sglang:num_queue_reqs"),
        "kv_usage": _metric("sglang:token_usage"),
        "kv_used_tokens": _metric("sglang:num_used_tokens"),
        "kv_capacity_tokens": _metric("sglang:max_total_num_tokens"),
        "preemptions": _metric(
            "sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total"
        ),
        "prompt_tokens": _metric("sglang:prompt_tokens_total"),
        "generation_tokens": _metric("sglang:generation_tokens_total"),
        "queue_time_s": _metric("sglang:queue_time_seconds_sum"),
        "queue_count": _metric("sglang:queue_time_seconds_count"),
    },
    "llama.cpp": {
        "running": _metric("llamacpp:requests_processing"),
        "waiting": _metric("llamacpp:requests_deferred"),
        "kv_usage": _metric("llamacpp:kv_cache_usage_ratio"),
        "kv_used_tokens": _metric("llamacpp:kv_cache_tokens"),
        "prompt_tokens": _metric("llamacpp:prompt_tokens_total"),
        "generation_tokens": _metric("llamacpp:tokens_predicted_total"),
    },
    "tgi": {
        "running": _metric("tgi_batch_current_size"),
        "waiting": _metric("tgi_queue_size"),
        "prompt_tokens": _metric("tgi_request_input_length_sum"),
        "generation_tokens": _metric("tgi_request_generated_tokens_sum"),
        "queue_time_s": _metric("tgi_request_queue_duration_sum"),
        "queue_count": _metric("tgi_request_queue_duration_count"),
        "service_time_s": _metric("tgi_request_inference_duration_sum"),
        "service_count": _metric("tgi_request_inference_duration_count"),
    },
    "tensorrt-llm": {
        "running": _metric(_TRT_REQUESTS, request_type="scheduled"),
        "waiting": _metric(_TRT_REQUESTS, request_type="waiting"),
        "max_num_seqs": _metric(_TRT_REQUESTS, request_type="max"),
        "kv_usage": _metric(_TRT_KV, kv_cache_block_type="fraction"),
        "block_size": _metric(_TRT_KV, kv_cache_block_type="tokens_per"),
        "num_gpu_blocks": _metric(_TRT_KV, kv_cache_block_type="max"),
    },
}

#: Quantities that are averaged, not summed, over the engines of a data-parallel server.
SHARES = ("kv_usage", "block_size")
#: No count, time or size of a server is larger, or has more digits.
MAX_VALUE, MAX_DIGITS = 1e15, 15


#: Other names of engines in use.
ALIASES: Mapping[str, str] = {
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp",
    "text-generation-inference": "tgi",
    "trtllm": "tensorrt-llm",
    "trt-llm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
}


def canonical_engine(name: str) -> str:
    """The name of an engine as `ENGINES` has it; one that is not there stays as it is."""
    key = ALIASES.get(name.strip().lower(), name.strip().lower())
    return key if key in ENGINES else name


def recognise(text: str) -> str | None:
    """The engine whose metrics these are; ``None`` if they are nobody's."""
    samples = parse_metrics(text)
    found = {e: sum(bool(_matching(samples, m)) for m in ms.values()) for e, ms in ENGINES.items()}
    best = max(found, key=lambda engine: found[engine])
    return best if found[best] else None


def read_metrics(text: str, engine: str, model: str | None = None) -> dict[str, float]:
    """Quantities of ``engine`` found in an exposition text; what is absent has no key.

    Samples of other models than ``model`` are left out where samples are labelled with it.
    Values of several engines behind one address are summed, `SHARES` averaged; where one of them
    is NaN or infinite, as gauges of an idle server can be, or the sum is none that can be (below 0,
    above `MAX_VALUE`), the quantity is unknown.
    """
    metrics = ENGINES[engine]
    samples = parse_metrics(text, {name for metric in metrics.values() for name in metric.names})
    if model is not None and any(s.labels.get("model_name") == model for s in samples):
        samples = [s for s in samples if s.labels.get("model_name", model) == model]
    values = {}
    for quantity, metric in metrics.items():
        found = _matching(samples, metric)
        if found:
            total = sum(s.value for s in found)
            if not 0 <= total <= MAX_VALUE:  # NaN is not, either
                continue
            values[quantity] = total / len(found) if quantity in SHARES else total
    return values


def read_cache_config(text: str) -> Mapping[str, str]:
    """Labels of vLLM's ``vllm:cache_config_info``, the KV-cache settings; empty without it.

    Of several engines (data parallelism) the first one's, with ``num_gpu_blocks`` of all: vLLM
    itself gives each series the sum over its engines; where the series differ, each has its own.
    ``kv_cache_size_tokens`` stays that of one engine.
    """
    series = [
        {k: v for k, v in sample.labels.items() if len(v) <= MAX_DIGITS or not v.isdecimal()}
        for sample in parse_metrics(text, {"vllm:cache_config_info"})
    ]
    if not series:
        return {}
    blocks = [labels.get("num_gpu_blocks", "") for labels in series]
    if len(set(blocks)) == 1 or not all(b.isdecimal() for b in blocks):
        return series[0]
    return {**series[0], "num_gpu_blocks": str(sum(map(int, blocks)))}


def count_engines(text: str, model: str | None = None) -> int:
    """Engines (data-parallel ranks) of ``model`` behind one address, by vLLM's ``engine`` label."""
    running = parse_metrics(text, {"vllm:num_requests_running"})
    mine = [s for s in running if model is None or s.labels.get("model_name", model) == model]
    return max(1, len({s.labels.get("engine") for s in mine}))


def _matching(samples: Iterable[Sample], metric: Metric) -> Sequence[Sample]:
    """Samples of the first of the metric's names that is there."""
    for name in metric.names:
        found = [
            s
            for s in samples
            if s.name == name and all(s.labels.get(k) == v for k, v in metric.labels.items())
        ]
        if found:
            return found
    return ()
