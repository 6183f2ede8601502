"""``llama-bench``: prefill and decode of one sequence, each timed alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, to_number
from servefit.importers.point import Point
from servefit.importers.tables import csv_blocks, markdown_tables, records

NAME = "llama-bench"

_KEYS = {"n_prompt", "n_gen", "avg_ts"}
_TEST = re.compile(r"(?:pp ?(\d+))?(?:\+?tg ?(\d+))?(?: ?@ ?d(\d+))?")


def recognise(document: Document) -> bool:
    """Its keys in JSON, JSON Lines or CSV; its columns ``test`` and ``t/s`` in Markdown."""
    if document.kind != "text":
        return set(document.first) >= _KEYS
    head = document.head
    return all(f"{key}" in head.split("\n", 1)[0] for key in _KEYS) or bool(
        re.search(r"^\|.*\btest\s*\|\s*t/s\s*\|", head, re.MULTILINE)
    )


def read(document: Document) -> Iterator[Point]:
    """A point a test. ``n_batch`` is a size of compute blocks, not the number of sequences."""
    if document.kind != "text":
        for where, record in document.records():
            if set(record) >= _KEYS:
                yield _point(record, document.name, where)
    elif document.head.startswith("|") or "\n|" in document.head:
        for line, rows in markdown_tables(document.text.splitlines()):
            for i, row in enumerate(rows):
                if (parsed := _from_markdown(row)) is not None:
                    yield _point(parsed, document.name, f"line {line + 2 + i}")
    else:
        for block in csv_blocks(document.text):
            for i, row in enumerate(records(block)):
                yield _point(row, document.name, f"row {i}")


def _from_markdown(row: Record) -> Record | None:
    match = _TEST.fullmatch(str(row.get("test", "")).strip())
    rate = to_number(str(row.get("t/s", "")).split("±")[0].strip())
    if match is None or rate is None or rate <= 0 or not (match[1] or match[2]):
        return None
    prompt, output, depth = (int(group or 0) for group in match.groups())
    return {
        "n_prompt": prompt,
        "n_gen": output,
        "n_depth": depth,
        "avg_ts": rate,
        "avg_ns": 1e9 * (prompt + output) / rate,
        "model_type": row.get("model"),
        "backends": row.get("backend"),
    }


def _point(record: Record, file: str, where: str) -> Point:
    point = Point(NAME, file, where)
    fields = Fields(record, point)
    prompt, output, depth = (fields.number(k) or 0.0 for k in ("n_prompt", "n_gen", "n_depth"))
    point.put("mode", "static_batch", "format")
    point.put("engine", "llama.cpp", "format")
    point.put("batch", 1, "format", "", "llama-bench runs one sequence")
    fields.take_text("engine_version", "build_commit")
    _model(fields)
    gpu = fields.text("gpu_info")
    if gpu and "," not in gpu:
        point.put("gpu", gpu, "gpu_info", gpu)
    if fields.text("type_k") == fields.text("type_v"):
        fields.take_text("kv_cache_dtype", "type_k")
    fields.take("e2e_mean_s", "avg_ns", divisor=1e9)
    rate = fields.number("avg_ts")
    if prompt and not output:
        point.put("input_tokens", prompt, "n_prompt", prompt)
        point.put("output_tokens", 1, "n_prompt", "", "a prompt's prefill gives its first token")
        point.put("prefill_tokens_per_s", rate, "avg_ts", rate)
        point.notes.append("prefill alone; decode is a row of its own")
    elif output and not prompt:
        point.put("input_tokens", 1, "n_gen", "", "decode from an empty context: one start token")
        point.put("output_tokens", output, "n_gen", output)
        point.put("decode_tokens_per_s", rate, "avg_ts", rate)
        e2e = point.number("e2e_mean_s")
        if e2e:
            point.put("tpot_mean_s", e2e / output, "avg_ns", "", "avg_ns / 1e9 / n_gen")
        point.notes.append("decode alone, from an empty context; prefill is a row of its own")
    elif prompt and output:
        point.put("input_tokens", prompt, "n_prompt", prompt)
        point.put("output_tokens", output, "n_gen", output)
    if depth:
        point.put("context_depth_tokens", depth, "n_depth", depth)
        reason = f"n_depth {depth:.0f}: the context before the test is not in its time"
        point.say("context", "refused", reason)
    return point


def _model(fields: Fields) -> None:
    """The model's file, as the record names it, without folder and quantisation."""
    path = fields.text("model_filename")
    kind = fields.text("model_type")
    if path:
        stem = re.split(r"[/\\]", path)[-1].removesuffix(".gguf")
        match = re.match(r"(.+?)[-._](I?Q\d\w*|F16|BF16|F32|MXFP4\w*)$", stem, re.IGNORECASE)
        name = match[1] if match else stem
        fields.point.put("model", name, "model_filename", path, "without folder and quantisation")
        if match:
            fields.point.put("quantisation", match[2], "model_filename", path)
    elif kind:
        fields.point.put("model", kind, "model_type", kind)
