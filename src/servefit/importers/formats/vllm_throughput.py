"""``vllm bench throughput``: requests offline, all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from servefit.importers.document import Document
from servefit.importers.fields import Fields, normal
from servefit.importers.point import Point

NAME = "vLLM bench throughput"

_KEYS = {
    "elapsed_time",
    "num_requests",
    "total_num_tokens",
    "requests_per_second",
    "tokens_per_second",
}


def recognise(document: Document) -> bool:
    """At least four of its five keys."""
    return len(_KEYS & {normal(key) for key in document.first}) >= 4


def read(document: Document) -> Iterator[Point]:
    """``tokens_per_second`` counts input and output; lengths are in the file only by hand."""
    for where, record in document.records():
        if len(_KEYS & {normal(key) for key in record}) < 3:
            continue
        point = Point(NAME, document.name, where)
        point.put("engine", "vllm", "format")
        fields = Fields(record, point)
        fields.take("duration_s", "elapsed_time")
        requests = fields.take("num_requests", "num_requests")
        point.put("completed", requests, "num_requests", "", "offline: all complete")
        fields.take("requests_per_s", "requests_per_second")
        fields.take("total_tokens_per_s", "tokens_per_second")
        fields.take("output_tokens_per_s", "output_tokens_per_second")
        fields.take_text("model", "model")
        fields.take("tensor_parallel_size", "tensor_parallel_size", "tp")
        _lengths(fields)
        point.put("_all_at_once", True, "format", "", "offline: no arrivals")
        if requests:
            why = "all at once: one static batch if the server has a seat for each"
            point.suggest("batch", int(requests), why)
        yield point


def _lengths(fields: Fields) -> None:
    """Lengths added by hand, however spelt; the second follows from the token total."""
    point, record = fields.point, fields.record
    for side in ("input", "output"):
        if not fields.take(f"{side}_tokens", side, f"{side}_len", f"{side}_tokens"):
            near = difflib.get_close_matches(side, [k for k in record if k != "input"], 1, 0.85)
            if near:
                how = f"taken for a misspelt {side!r}"
                fields.take(f"{side}_tokens", near[0], how=how)
    total, requests = fields.number("total_num_tokens"), fields.number("num_requests")
    if not total or not requests:
        return
    each = total / requests
    known = [point.number(f"{side}_tokens") for side in ("input", "output")]
    if known[0] is not None and known[1] is not None:
        agrees = abs(known[0] + known[1] - each) <= 0.01 * each
        both = known[0] + known[1]
        message = f"total_num_tokens / num_requests = {each:.6g}, lengths add up to {both:.6g}"
        point.say("token totals", "agrees" if agrees else "flagged", message)
    elif known[0] is not None and each > known[0]:
        how = "total_num_tokens / num_requests - input"
        point.put("output_tokens", each - known[0], "total_num_tokens", total, how)
    else:
        point.notes.append(f"a request has {each:.6g} tokens, input and output together")
