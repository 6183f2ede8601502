"""InferenceX (once InferenceMAX) aggregates: seconds, and rates per GPU."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, mapping
from servefit.importers.point import Point

NAME = "InferenceX aggregate"


def recognise(document: Document) -> bool:
    """Its throughput per GPU, next to or below the configuration."""
    return _is_result(document.first)


def _is_result(record: Record) -> bool:
    return "tput_per_gpu" in record or "tput_per_gpu" in mapping(record.get("metrics"))


def read(document: Document) -> Iterator[Point]:
    """A point a record."""
    for where, record in document.records():
        if _is_result(record):
            yield _point(record, document.name, where)


def _point(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where)
    config = Fields(record, point)
    metrics = config.below("metrics") if "metrics" in record else config
    serving.take_model(config, "model")
    config.take_text("engine", "framework")
    hardware = config.text("hw", "hardware")
    if hardware:
        gpu = hardware.split("-")[0].upper()
        point.put(
            "gpu", gpu, "hw", hardware, "" if gpu == hardware else "without the runner's name"
        )
    config.take("tensor_parallel_size", "tp", "decode_tp")
    config.take_text("weight_precision", "precision")
    config.take("concurrency", "conc")
    config.take_text("measured_at", "date")
    _switches(config)
    _rates(config, metrics)
    for latency in ("ttft", "tpot", "itl", "e2e"):
        key = "e2el" if latency == "e2e" else latency
        metrics.take(f"{latency}_mean_s", f"mean_{key}", f"{key}_mean")
        metrics.take(f"{latency}_median_s", f"median_{key}", f"{key}_p50")
        metrics.take(f"{latency}_p99_s", f"p99_{key}", f"{key}_p99")
    config.take("nominal_input_tokens", "isl")
    config.take("nominal_output_tokens", "osl")
    _lengths(point)
    return point


def _switches(config: Fields) -> None:
    point = config.point
    speculation = str(config.raw("spec_decoding", "mtp")[1] or "").lower()
    if speculation not in ("", "none", "off", "false"):
        point.put("speculative_decoding", True, "spec_decoding", speculation)
    if str(config.raw("disagg")[1]).lower() == "true":
        point.put("disaggregated", True, "disagg", "true")
    if str(config.raw("dp_attention")[1]).lower() == "true":
        point.say("parallelism", "flagged", "attention is data-parallel over the tp GPUs")


def _rates(config: Fields, metrics: Fields) -> None:
    """Rates per GPU times the GPUs that they are divided by."""
    point = config.point
    parts = [config.number("num_prefill_gpu"), config.number("num_decode_gpu")]
    if parts[0] is not None and parts[1] is not None:
        point.say("per GPU", "flagged", "prefill and decode rates are per GPU of their own kind")
        gpus = parts[0] + parts[1]
        metrics.take("total_tokens_per_s", "tput_per_gpu", divisor=1 / gpus if gpus else 1.0)
        metrics.take("output_tokens_per_s", "output_tput_per_gpu", divisor=1 / (parts[1] or 1.0))
        return
    gpus = config.number("num_gpus", "tp") or 0.0
    if gpus <= 0:
        point.say("per GPU", "refused", "rates are per GPU, and the file does not say how many")
        return
    how = f"per GPU x {gpus:.0f} GPUs"
    metrics.take("total_tokens_per_s", "tput_per_gpu", divisor=1 / gpus, how=how)
    metrics.take("output_tokens_per_s", "output_tput_per_gpu", divisor=1 / gpus, how=how)
    point.put("_rated_gpus", gpus, "tp", gpus)


def _lengths(point: Point) -> None:
    """Mean lengths: `isl` and `osl` are the upper ends of what was drawn.

    The output length follows from the latencies, ``OL = 1 + (E2E - TTFT) / TPOT``, the input
    length from the rates, ``IL / OL = (total - output) / output``.
    """
    times = point.numbers("e2e_mean_s", "ttft_mean_s", "tpot_mean_s")
    rates = point.numbers("total_tokens_per_s", "output_tokens_per_s")
    if times and rates and times[2] > 0 and times[0] > times[1] and rates[1] > 0:
        output = 1 + (times[0] - times[1]) / times[2]
        point.derive("output_tokens", output, "1 + (E2E - TTFT) / TPOT; osl is the upper end")
        how = "output_tokens x (total - output) / output tokens/s"
        point.derive("input_tokens", output * (rates[0] - rates[1]) / rates[1], how)
        return
    for side in ("input", "output"):
        nominal = point.number(f"nominal_{side}_tokens")
        point.put(f"{side}_tokens", nominal, f"{side[0]}sl", nominal, "nominal: not counted")
