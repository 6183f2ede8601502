"""llmperf-bench summaries: one object a concurrency (``first-time-to-token_mean_in_ms``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from servefit.importers import serving
from servefit.importers.document import Document
from servefit.importers.fields import Fields
from servefit.importers.point import Point

NAME = "llmperf-bench summary"

_KEYS = {"throughput_token_per_s", "latency_ms_per_token", "first-time-to-token_mean_in_ms"}


def recognise(document: Document) -> bool:
    """Objects of its three numbers, by concurrency."""
    return any(_is_result(value) for value in document.first.values())


def _is_result(value: object) -> bool:
    return isinstance(value, Mapping) and len(_KEYS & set(value)) >= 2


def read(document: Document) -> Iterator[Point]:
    """``latency_ms_per_token`` is E2E / output tokens, TTFT included; throughput is of output."""
    for where, record in document.records():
        for key, value in record.items():
            if not isinstance(value, Mapping) or not _is_result(value):
                continue
            point = serving.new_point(NAME, document.name, f"{where}[{key!r}]")
            fields = Fields(value, point, f"{key}.")
            fields.take("concurrency", "concurrency")
            if key.isdigit():
                point.put("concurrency", int(key), "key", key)
            fields.take("input_tokens", "input_token_length", how="nominal: not counted")
            output = fields.take("output_tokens", "output_token_length", how="nominal: not counted")
            fields.take("output_tokens_per_s", "throughput_token_per_s")
            fields.take("ttft_mean_s", "first-time-to-token_mean_in_ms", divisor=1e3)
            each = fields.number("latency_ms_per_token")
            if each is not None and output:
                how = "x output_tokens / 1000: E2E a token, TTFT included"
                point.put(
                    "e2e_mean_s", each * output / 1e3, f"{key}.latency_ms_per_token", each, how
                )
            yield point
