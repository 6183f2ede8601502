"""The documented columns of a table of runs and of a table of engine steps.

Everything that is known about a column lives here: its type, unit, meaning and range, and every
other name by which users' files call it. Columns that are not listed are kept as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["runs", "steps"]
Type = Literal["text", "float", "int", "bool"]

#: Version of both schemas. Files carry it in the column ``schema_version``; one without it is
#: taken as the present version, one with a higher number is refused.
SCHEMA_VERSION = 1

#: Words in `flags` of a row whose server may decode speculatively or split prefill from decode.
NOT_ONE_ENGINE = "law of one engine"
#: Names of flags of a row whose load, or whose times, are not quite what its columns say.
DOUBTFUL_FLAGS = (
    "load_not_held",
    "slots_paused",
    "not_steady",
    "mean_batch_over_seats",
    "server_counts",
    "prefix_cache_hits",
    "client_late",
    "client_lag",
)

#: Columns of a frame that are no part of the file: where each row was read.
ROW = "row"
FILE = "file"


@dataclass(frozen=True, slots=True)
class Column:
    """One documented column.

    Attributes:
        name: canonical name, with its unit.
        type: ``int`` is a whole number; ``float`` any finite number.
        unit: unit of the values; empty for names and switches.
        meaning: one line for the documentation.
        above: values must be greater than this.
        at_least, at_most: values must lie in this closed range.
    """

    name: str
    type: Type
    unit: str
    meaning: str
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None


def _text(name: str, meaning: str) -> Column:
    return Column(name, "text", "", meaning)


def _mean(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "float", unit, meaning, above=0.0)


def _count(name: str, unit: str, meaning: str, at_least: int = 1) -> Column:
    return Column(name, "int", unit, meaning, at_least=at_least)


def _fraction(name: str, meaning: str) -> Column:
    return Column(name, "float", "fraction", meaning, at_least=0.0, at_most=1.0)


_SETTING = (
    _text("model", "model, usually its HuggingFace name"),
    _text("gpu", "accelerator, by its catalogue name; empty: unknown"),
    _count("tensor_parallel_size", "GPUs", "accelerators that share one replica"),
    _text("engine", "serving engine"),
    _text("engine_version", "its version"),
    _text("attention_backend", "attention kernels that it used"),
    _text("dtype", "number format of the weights and the arithmetic"),
    _text("kv_cache_dtype", "number format of the KV cache"),
)

_MACHINE = (
    _mean("peak_flops_per_s", "FLOP/s", "peak of one device, measured on this machine"),
    _mean("memory_bandwidth_bytes_per_s", "B/s", "peak of one device, measured on this machine"),
    _mean("memory_bytes", "B", "memory of one device"),
)

_ORIGIN = (
    _text("campaign", "name of the measurement campaign"),
    Column("repeat", "int", "", "which repetition of the same point", at_least=0),
    _text("measured_at", "when, ISO 8601"),
    _text("source_file", "file, folder or command that the row came from"),
    Column("source_row", "int", "", "position in that file, from 0", at_least=0),
    _text("flags", "warnings that travel with the row, separated by semicolons"),
)

RUN_COLUMNS: tuple[Column, ...] = (
    *_SETTING,
    _text("mode", "`static_batch` or `serving`"),
    Column("input_tokens", "float", "tokens", "mean prompt length, as counted", at_least=1),
    Column("output_tokens", "float", "tokens", "mean answer length, as counted", at_least=1),
    _count("batch", "requests", "size of a static batch: all start and run together"),
    _mean("mean_batch", "requests", "time average of running requests, queue left out"),
    _count("peak_batch", "requests", "most requests that ran at once", at_least=0),
    _count("concurrency", "requests", "requests that the client kept in flight, queue included"),
    _mean("request_rate_per_s", "1/s", "arrivals per second that the client aimed at"),
    _count("max_num_seqs", "requests", "the server's batch cap, of each engine"),
    _count("data_parallel_size", "engines", "engines that share the load of the row"),
    _count("max_num_batched_tokens", "tokens", "the server's token budget of one step"),
    Column("chunked_prefill", "bool", "", "prompts are split over steps"),
    _count("num_gpu_blocks", "blocks", "KV-cache blocks"),
    _count("block_size", "tokens", "tokens of one KV-cache block"),
    _count("kv_capacity_tokens", "tokens", "KV-cache capacity = num_gpu_blocks x block_size"),
    _fraction("gpu_memory_utilization", "share of GPU memory that the engine may use"),
    _count("num_requests", "requests", "requests sent"),
    _count("completed", "requests", "requests answered in full", at_least=0),
    _count("failed_requests", "requests", "requests that failed or were cancelled", at_least=0),
    _mean("duration_s", "s", "length of the measured window"),
    _mean("requests_per_s", "1/s", "requests completed per second"),
    _mean("total_tokens_per_s", "tokens/s", "input and output tokens per second (Eq. 6)"),
    _mean("output_tokens_per_s", "tokens/s", "output tokens per second"),
    _mean("e2e_mean_s", "s", "E2E in service, without queueing; of the whole batch if static"),
    _mean("e2e_with_queue_mean_s", "s", "E2E as the client sees it, where it holds queueing"),
    _mean("ttft_mean_s", "s", "time to first token, without queueing"),
    _mean("ttft_with_queue_mean_s", "s", "time to first token as the client sees it"),
    Column("queue_time_mean_s", "float", "s", "time spent waiting for a seat", at_least=0),
    _mean("tpot_mean_s", "s", "(E2E - TTFT) / (output tokens - 1), mean over requests"),
    _mean("itl_mean_s", "s", "time between chunks of an answer, mean over chunks"),
    *(
        _mean(f"{latency}_{statistic}_s", "s", f"{statistic} of {latency.upper()} over requests")
        for latency in ("e2e", "ttft", "tpot", "itl")
        for statistic in ("median", "p99")
    ),
    _mean("mean_live_tokens", "tokens", "mean tokens in the KV cache: the active context (Eq. 3)"),
    _fraction("mean_kv_usage", "mean share of the KV cache in use"),
    _fraction("peak_kv_usage", "largest share of the KV cache in use"),
    Column("preemptions", "int", "", "requests evicted: > 0 means the KV cache was full", None, 0),
    Column("speculative_decoding", "bool", "", "several tokens a step: no single-step law holds"),
    Column("disaggregated", "bool", "", "prefill and decode on different servers: likewise"),
    _text("batch_limited_by", "what held the batch down: `max_num_seqs`, `kv_preempt`, ..."),
    Column("power_w", "float", "W", "mean power of one device", at_least=0),
    Column(
        "total_tokens_per_s_rel_err",
        "float",
        "fraction",
        "half width of its 95 % interval, relative",
        at_least=0,
    ),
    Column(
        "e2e_mean_s_rel_err",
        "float",
        "fraction",
        "half width of its 95 % interval, relative",
        at_least=0,
    ),
    *_MACHINE,
    *_ORIGIN,
)

STEP_COLUMNS: tuple[Column, ...] = (
    _mean("step_time_s", "s", "time of one engine step, the median over `n` steps"),
    *_SETTING,
    _text("phase", "`decode`, `context` (prefill only) or `mixed`"),
    _text("segment", "`sweep` (controlled) or `real` (served load)"),
    _count("prefill_tokens", "tokens", "prompt tokens computed in the step", at_least=0),
    _count("prefill_requests", "requests", "prompts that they belong to", at_least=0),
    _count("prefill_kv_tokens", "tokens", "tokens of those prompts already cached", at_least=0),
    _count("decode_requests", "requests", "requests that got one token", at_least=0),
    Column(
        "mean_decode_context_tokens", "float", "tokens", "mean context of each of them", at_least=0
    ),
    _count("n", "steps", "steps behind the median"),
    *_MACHINE,
    *_ORIGIN,
)

COLUMNS: MappingProxyType[Kind, MappingProxyType[str, Column]] = MappingProxyType(
    {
        "runs": MappingProxyType({c.name: c for c in RUN_COLUMNS}),
        "steps": MappingProxyType({c.name: c for c in STEP_COLUMNS}),
    }
)

#: Without these a table is of no use; each entry is satisfied by any of its names.
REQUIRED: MappingProxyType[Kind, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "runs": (
            ("model",),
            ("input_tokens",),
            ("output_tokens",),
            ("batch", "mean_batch", "max_num_seqs"),
            ("total_tokens_per_s", "requests_per_s", "output_tokens_per_s", "e2e_mean_s"),
        ),
        "steps": (("model",), ("step_time_s",), ("prefill_tokens", "decode_requests")),
    }
)

#: Other names in use, by canonical name. All hold the same quantity in the same unit: a nominal
#: length is not a mean one, a median is not a mean, and a client's concurrency is not a batch.
OTHER_NAMES: MappingProxyType[str, str] = MappingProxyType(
    {
        "model": "model_id model_name model_path served_model_name",
        "gpu": "gpu_name gpu_type accelerator hardware device_name",
        "tensor_parallel_size": "tp tp_size tensor_parallel tensor_parallelism",
        "engine": "framework serving_engine inference_engine",
        "engine_version": "vllm_version sglang_version framework_version",
        "dtype": "weight_dtype precision data_type",
        "kv_cache_dtype": "kv_dtype",
        "input_tokens": "input_len input_length mean_input_tokens prompt_tokens prompt_len isl il",
        "output_tokens": "output_len output_length mean_output_tokens completion_tokens osl ol",
        "batch": "batch_size static_batch static_batch_size",
        "mean_batch": "mean_batch_size avg_batch avg_batch_size average_batch "
        "mean_running_requests avg_running_requests mean_num_requests_running",
        "peak_batch": "max_batch_seen peak_running_requests",
        "concurrency": "max_concurrency num_concurrent_requests requests_in_flight",
        "max_num_seqs": "max_running_requests max_batch_size batch_cap",
        "max_num_batched_tokens": "max_num_tokens token_budget",
        "chunked_prefill": "enable_chunked_prefill",
        "num_gpu_blocks": "num_kv_blocks gpu_blocks total_gpu_blocks",
        "block_size": "page_size tokens_per_block kv_block_size",
        "kv_capacity_tokens": "kv_cache_tokens kv_cache_size_tokens max_total_num_tokens",
        "num_requests": "num_prompts total_requests",
        "completed": "completed_requests successful_requests num_completed",
        "duration_s": "duration benchmark_duration benchmark_duration_s elapsed_s",
        "requests_per_s": "request_throughput requests_per_second req_per_s req_s rps "
        "request_throughput_req_s",
        "total_tokens_per_s": "total_token_throughput total_throughput tokens_per_s "
        "total_tokens_per_second total_token_throughput_tok_s",
        "output_tokens_per_s": "output_throughput output_token_throughput "
        "output_tokens_per_second output_token_throughput_tok_s output_throughput_tok_s",
        "e2e_mean_s": "e2e_s mean_e2e_s e2e_latency_s mean_e2e_latency_s mean_e2el_s latency_s "
        "e2e_latency_mean_s",
        "ttft_mean_s": "ttft_s mean_ttft_s avg_ttft_s",
        "ttft_with_queue_mean_s": "mean_ttft_with_queue_s",
        "queue_time_mean_s": "queue_time_s mean_queue_time_s",
        "tpot_mean_s": "tpot_s mean_tpot_s avg_tpot_s",
        "itl_mean_s": "itl_s mean_itl_s avg_itl_s",
        "e2e_median_s": "median_e2e_s median_e2el_s median_e2e_latency_s",
        "ttft_median_s": "median_ttft_s",
        "tpot_median_s": "median_tpot_s",
        "itl_median_s": "median_itl_s",
        "e2e_p99_s": "p99_e2e_s p99_e2el_s p99_e2e_latency_s",
        "ttft_p99_s": "p99_ttft_s",
        "tpot_p99_s": "p99_tpot_s",
        "itl_p99_s": "p99_itl_s",
        "failed_requests": "failed errored_requests error_request_count",
        "mean_live_tokens": "active_context_tokens mean_active_context mean_kv_tokens",
        "mean_kv_usage": "kv_cache_usage_mean mean_kv_cache_usage",
        "preemptions": "num_preemptions",
        "source_file": "source source_folder file",
        "source_row": "row",
        "measured_at": "date timestamp",
        "step_time_s": "step_s iteration_time_s step_latency_s",
        "mean_decode_context_tokens": "mean_context_tokens decode_context_tokens",
        "decode_requests": "num_decode_requests decode_batch",
        "prefill_tokens": "num_prefill_tokens",
        "prefill_requests": "num_prefill_requests",
    }
)

#: Every name that ends in ``_s`` and holds seconds is also read with these endings.
TIME_SUFFIXES: MappingProxyType[str, float] = MappingProxyType({"_ms": 1e3, "_us": 1e6})


@dataclass(frozen=True, slots=True)
class Alias:
    """Another name of a column; its values are divided by ``divisor`` to get the column's unit."""

    column: str
    divisor: float = 1.0


def _aliases() -> dict[str, Alias]:
    units = {c.name: c.unit for c in (*RUN_COLUMNS, *STEP_COLUMNS)}
    aliases = {}
    for column, unit in units.items():
        names = [column, *OTHER_NAMES.get(column, "").split()]
        aliases.update({name: Alias(column) for name in names[1:]})
        for name in names:
            if unit == "s" and name.endswith("_s"):
                stem = name.removesuffix("_s")
                for suffix, divisor in TIME_SUFFIXES.items():
                    aliases[stem + suffix] = Alias(column, divisor)
    return aliases


#: Alternative column name -> column and conversion: `OTHER_NAMES` and `TIME_SUFFIXES`, spelt out.
ALIASES: MappingProxyType[str, Alias] = MappingProxyType(_aliases())


def resolve(header: str, kind: Kind) -> Alias | None:
    """The documented column that a header names; ``None`` for an extra column.

    Case, spaces and punctuation do not matter: ``Mean TTFT (ms)`` is ``mean_ttft_ms``.
    """
    name = re.sub(r"[^a-z0-9]+", "_", header.lower()).strip("_")
    alias = Alias(name) if name in COLUMNS[kind] else ALIASES.get(name)
    return alias if alias is not None and alias.column in COLUMNS[kind] else None
