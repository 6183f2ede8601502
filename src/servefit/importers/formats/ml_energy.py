"""ML.ENERGY benchmark results, and the configurations of its leaderboard."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, mapping, sequence
from servefit.importers.point import Point

NAME = "ML.ENERGY result"


def recognise(document: Document) -> bool:
    """Steady-state energy of a run, or configurations with energy per token."""
    return "steady_state_energy_per_token" in document.first or bool(_listed(document.first))


def _listed(record: Record) -> list[Record]:
    found = [mapping(c) for c in sequence(record.get("configurations"))]
    return [c for c in found if "energy_per_token_joules" in c]


def read(document: Document) -> Iterator[Point]:
    """A point a run or configuration."""
    for where, record in document.records():
        for i, configuration in enumerate(_listed(record)):
            yield _configuration(configuration, document.name, f"{where}configurations[{i}]")
        if "steady_state_energy_per_token" in record:
            yield _run(record, document.name, where)


def _setting(fields: Fields) -> None:
    serving.take_model(fields, "model_id")
    fields.take_text("gpu", "gpu_model")
    fields.take("tensor_parallel_size", "tensor_parallel", "num_gpus")
    fields.take("max_num_seqs", "max_num_seqs")
    fields.take("max_num_batched_tokens", "max_num_batched_tokens")


def _run(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where, "vllm")
    fields = Fields(record, point)
    _setting(fields)
    serving.read_load(fields)
    serving.read_rates(fields)
    serving.read_latencies(fields)
    energy, seconds = (fields.number(f"steady_state_{k}") for k in ("energy", "duration"))
    gpus = fields.number("num_gpus")
    if energy and seconds and gpus:
        how = "steady_state_energy / steady_state_duration / num_gpus"
        point.put("power_w", energy / seconds / gpus, "steady_state_energy", energy, how)
    return point


def _configuration(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where, "vllm")
    fields = Fields(record, point)
    _setting(fields)
    fields.take("mean_batch", "avg_batch_size")
    fields.take("input_tokens", "avg_input_len", "avg_prompt_len")
    fields.take("output_tokens", "avg_output_len", "avg_output_tokens")
    fields.take("output_tokens_per_s", "output_throughput_tokens_per_sec")
    fields.take("itl_median_s", "median_itl_ms", divisor=1e3)
    fields.take("itl_p99_s", "p99_itl_ms", divisor=1e3)
    power, gpus = fields.number("avg_power_watts"), fields.number("num_gpus")
    if power and gpus:
        point.put("power_w", power / gpus, "avg_power_watts", power, "/ num_gpus")
    return point
