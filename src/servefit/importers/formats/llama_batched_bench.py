"""``llama-batched-bench``: static batches, prefill then decode (Markdown or JSON Lines)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields
from servefit.importers.point import Point
from servefit.importers.tables import markdown_tables

NAME = "llama-batched-bench"

_COLUMNS = {"PP", "TG", "B", "N_KV", "T_PP s", "T_TG s", "T s"}
_JSON_KEYS = {"pp", "tg", "pl", "t_pp", "t_tg"}
_SHARED = re.compile(r"is_pp_shared\s*=\s*(\d)")


def recognise(document: Document) -> bool:
    """The columns of its table, or the keys of its JSON Lines."""
    if document.kind != "text":
        return set(document.first) >= _JSON_KEYS
    return bool(re.search(r"^\|\s*PP\s*\|\s*TG\s*\|\s*B\s*\|", document.head, re.MULTILINE))


def read(document: Document) -> Iterator[Point]:
    """A point a row. ``B`` is the batch; ``S t/s`` counts prompt tokens too."""
    if document.kind != "text":
        for where, record in document.records():
            if set(record) >= _JSON_KEYS:
                yield _point(record, document.name, where, bool(record.get("is_pp_shared")))
        return
    shared = _SHARED.search(document.text)
    for line, rows in markdown_tables(document.text.splitlines()):
        for i, row in enumerate(rows):
            if set(row) >= _COLUMNS:
                is_shared = shared is not None and shared[1] == "1"
                yield _point(row, document.name, f"line {line + 2 + i}", is_shared)


def _point(record: Record, file: str, where: str, shared: bool) -> Point:
    point = Point(NAME, file, where)
    fields = Fields(record, point)
    point.put("mode", "static_batch", "format")
    point.put("engine", "llama.cpp", "format")
    fields.take("input_tokens", "PP")
    output = fields.take("output_tokens", "TG")
    batch = fields.take("batch", "B", "pl")
    fields.take("e2e_mean_s", "T s", "t")
    fields.take("prefill_s", "T_PP s", "t_pp")
    fields.take("prefill_tokens_per_s", "S_PP t/s", "speed_pp")
    fields.take("decode_tokens_per_s", "S_TG t/s", "speed_tg")
    decode = fields.number("T_TG s", "t_tg")
    if decode and output:
        for name in ("tpot_mean_s", "itl_mean_s"):
            point.put(name, decode / output, "T_TG s", decode, "T_TG / TG: one step a token")
    total = fields.take("total_tokens_per_s", "S t/s", "speed")
    point.notes.append("no TTFT: T_PP is the prefill of the whole batch")
    e2e = point.number("e2e_mean_s")
    if output and batch and e2e:
        how = "B x TG / T; S_TG is over the decode's time alone"
        point.put("output_tokens_per_s", batch * output / e2e, "T s", "", how)
    if shared and batch and batch > 1 and total:
        reason = (
            "is_pp_shared: one prefill for all sequences, so this is no batch of separate prompts"
        )
        point.say("shared prompt", "refused", reason)
    return point
