"""The block that serving benchmarks print: ``Serving Benchmark Result``, of vLLM and SGLang."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document
from servefit.importers.fields import Fields
from servefit.importers.logs import setting
from servefit.importers.point import Point

NAME = "serving benchmark console"

_TITLE = re.compile(r"=+ (?:Serving )?Benchmark Result =+")
_LINE = re.compile(r"\s*([A-Za-z#][^:]{2,60}):\s+(\S+)\s*$")
_ARGUMENTS = {
    name: setting(name)
    for name in (
        "model",
        "backend",
        "request_rate",
        "max_concurrency",
        "num_prompts",
        "dataset_name",
    )
}


def recognise(document: Document) -> bool:
    """Its title, anywhere: a log may begin with long progress bars."""
    if document.kind != "text":
        return False
    return any(_TITLE.search(line) for line in document.source.lines())


def read(document: Document) -> Iterator[Point]:
    """A point a block, with the arguments that were printed before it."""
    arguments: dict[str, str] = {}
    block: dict[str, object] | None = None
    start = 0
    for number, line in enumerate(document.source.lines(), start=1):
        if _TITLE.search(line):
            block, start = dict(arguments), number
        elif block is not None and re.match(r"=+\s*$", line):
            yield _point(block, document.name, f"line {start}")
            block, arguments = None, {}
        elif match := _LINE.match(line):
            (arguments if block is None else block)[match[1].strip()] = match[2]
        elif block is None and "Namespace(" in line:
            for name, pattern in _ARGUMENTS.items():
                if found := pattern.search(line[:50_000]):
                    arguments[name] = found[1].strip("'\"")
    if block is not None and len(block) > len(arguments):
        yield _point(block, document.name, f"line {start}")


def _point(block: dict[str, object], file: str, where: str) -> Point:
    fields = Fields(block, serving.new_point(NAME, file, where))
    backend = fields.text("backend") or ""
    engine = next((e for e in ("vllm", "sglang") if backend.startswith(e)), None)
    fields.point.put("engine", engine, "Backend", backend)
    serving.take_model(fields, "model")
    serving.read_load(fields)
    counts = fields.point.numbers("completed", "duration_s")
    if counts and counts[1] > 0:
        how = "successful requests / duration; the printed rate has two decimals"
        fields.point.put("requests_per_s", counts[0] / counts[1], "block", "", how)
    serving.read_rates(fields)
    serving.read_latencies(fields)
    serving.read_server(fields)
    return fields.point
