"""The decoder of server-sent events against the standard."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.profiling import sse
from servefit.profiling.sse import EventDecoder

STREAM = (
    b"\xef\xbb\xbfdata: one\n\n"
    b": a comment\n"
    b"event: error\r\ndata: two\r\ndata:  three\r\n\r\n"
    b"id: 7\rretry: 10\rdata\r\r"
    b"event: ping\n\n"
    b"data:four\n\n"
    b"data: never finished"
)
EVENTS = [
    ("message", b"one"),
    ("error", b"two\n three"),
    ("message", b""),
    ("message", b"four"),
]


def decode(pieces: list[bytes]) -> list[tuple[str, bytes]]:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def test_fields_line_ends_comments_and_byte_order_mark_follow_the_standard() -> None:
    assert decode([STREAM]) == EVENTS


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_it_does_not_matter_where_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert decode([STREAM[a:b] for a, b in itertools.pairwise(edges)]) == EVENTS


def test_every_byte_alone_gives_the_same_events() -> None:
    assert decode([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "MAX_LINE_BYTES", 1000)
    with pytest.raises(ServefitError, match="longer than 1000 bytes"):
        decode([b"x" * 100] * 20)
