"""llmperf summaries (``results_*`` keys, seconds)."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields
from servefit.importers.point import Point

NAME = "llmperf summary"


def recognise(document: Document) -> bool:
    """Its flattened result keys."""
    return any(
        key.startswith(("results_ttft_s", "results_end_to_end_latency_s")) for key in document.first
    )


def read(document: Document) -> Iterator[Point]:
    """A point a file.

    ``inter_token_latency`` is E2E / tokens and holds TTFT, so it is neither ITL nor TPOT;
    ``request_output_throughput`` is of one request.
    """
    for where, record in document.records():
        if any(key.startswith("results_") for key in record):
            yield _point(record, document.name, where)


def _point(record: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where)
    fields = Fields(record, point)
    fields.take_text("model", "model")
    fields.take("concurrency", "num_concurrent_requests")
    fields.take("nominal_input_tokens", "mean_input_tokens")
    fields.take("nominal_output_tokens", "mean_output_tokens")
    fields.take("input_tokens", "results_number_input_tokens_mean")
    fields.take("output_tokens", "results_number_output_tokens_mean")
    for latency, key in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s")):
        fields.take(f"{latency}_mean_s", f"results_{key}_mean")
        fields.take(f"{latency}_median_s", f"results_{key}_quantiles_p50")
        fields.take(f"{latency}_p99_s", f"results_{key}_quantiles_p99")
    fields.take("output_tokens_per_s", "results_mean_output_throughput_token_per_s")
    fields.take("requests_per_s", "results_num_completed_requests_per_min", divisor=60.0)
    fields.take("num_requests", "results_num_requests_started")
    fields.take("completed", "results_num_completed_requests")
    fields.take("failed_requests", "results_number_errors")
    point.notes.append("results_inter_token_latency_s is E2E / tokens: holds TTFT, not used")
    point.notes.append("results_request_output_throughput_* is of one request: not used")
    return point
