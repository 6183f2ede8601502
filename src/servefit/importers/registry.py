"""The formats, in the order in which they are asked."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol, cast

from servefit.importers.document import Document, embedded
from servefit.importers.point import Point

#: Modules of `servefit.importers.formats`; the more particular come before the more general.
NAMES = (
    "not_runs",
    "prometheus",
    "serving_console",
    "trtllm_bench",
    "vllm_log",
    "sglang_log",
    "guidellm",
    "aiperf",
    "aiperf_records",
    "inference_perf",
    "inference_perf_server",
    "llmperf",
    "llmperf_bench",
    "llama_bench",
    "llama_batched_bench",
    "sglang_serving",
    "sglang_one_batch",
    "inferencex",
    "ml_energy",
    "vllm_nightly",
    "vllm_latency",
    "vllm_throughput",
    "vllm_serve",
)


class Format(Protocol):
    """One kind of file: a module with a name, and two functions.

    ``recognise`` tells it by content, never by the file's name; ``read`` gives its points.
    """

    NAME: str

    def recognise(self, document: Document) -> bool:
        """Whether this is such a file."""

    def read(self, document: Document) -> Iterable[Point]:
        """Its points."""


def formats() -> Iterator[Format]:
    """All formats."""
    for name in NAMES:
        yield cast("Format", importlib.import_module(f"servefit.importers.formats.{name}"))


def find(document: Document) -> tuple[Format, Document] | None:
    """The format of a document, and the document or the part of it that it reads.

    ``None`` if nobody recognises it, or any list or table of objects inside it.
    """
    for view in _views(document):
        form = next((f for f in formats() if f.recognise(view)), None)
        if form is not None:
            return form, view
    return None


def _views(document: Document) -> Iterator[Document]:
    """The document; then, where it is JSON, what wrappers put results into.

    Those are later items of a list, a list under a key, and objects by name; in text, objects over
    several lines.
    """
    yield document
    if document.kind == "text":
        if objects := embedded(document):
            yield replace(document, kind="json", value=objects)
        return
    if document.kind != "json":
        return
    value = document.value
    if isinstance(value, list):
        yield from (replace(document, value=value[i:]) for i in range(1, min(len(value), 6)))
    elif isinstance(value, dict):
        lists = [v for v in value.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        objects = [v for v in value.values() if isinstance(v, dict)]
        yield from (replace(document, value=part) for part in (*lists, objects, *objects) if part)
