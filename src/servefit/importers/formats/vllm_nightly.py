"""Markdown tables of vLLM's nightly benchmarks: serving tests; they name no model and no length."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document
from servefit.importers.fields import Fields, normal
from servefit.importers.point import Point
from servefit.importers.tables import Row, markdown_tables

NAME = "vLLM nightly table"

_HEADER = re.compile(r"^\|\s*Test name\s*\|.*Tput \(req/s\)", re.MULTILINE)


def recognise(document: Document) -> bool:
    """The header of its tables."""
    return document.kind == "text" and bool(_HEADER.search(document.text))


def read(document: Document) -> Iterator[Point]:
    """A point a row of the serving tests; latency and throughput tests lack what a row needs."""
    for line, rows in markdown_tables(document.text.splitlines()):
        for i, row in enumerate(rows):
            keys = {normal(key) for key in row}
            if "tput_req_s" in keys and any("ttft" in key for key in keys):
                yield _point(row, document.name, f"line {line + 2 + i}")


def _point(row: Row, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where, "vllm")
    fields = Fields(row, point)
    fields.take_text("test_name", "test_name")
    fields.take_text("gpu", "gpu")
    fields.take("completed", "of_req")
    fields.take("request_rate_per_s", "request_rate_req_s")
    fields.take("requests_per_s", "tput_req_s")
    fields.take("output_tokens_per_s", "output_tput_tok_s")
    fields.take("total_tokens_per_s", "total_tput_tok_s")
    serving.read_latencies(fields)
    for latency in ("ttft", "tpot", "itl"):
        fields.take(f"{latency}_mean_s", f"{latency}_ms", divisor=1e3)
    return point
