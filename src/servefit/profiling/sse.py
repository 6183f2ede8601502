"""Server-sent events, decoded as they arrive."""

from __future__ import annotations

from servefit.errors import ServefitError

#: A line longer than this is not an event of a token stream.
MAX_LINE_BYTES = 16 * 2**20


class EventDecoder:
    """Incremental decoder of ``text/event-stream`` (WHATWG HTML standard, section 9.2.6).

    Lines end in LF, CR or CRLF and may be cut anywhere; the ``data`` lines of one event are joined
    by a newline; comments and the fields ``id`` and ``retry`` are ignored.
    """

    def __init__(self) -> None:
        """At the start of a stream."""
        self._tail = b""
        self._skip_lf = False
        self._data: list[bytes] = []
        self._type = ""
        self._start = True

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """Events that ``chunk`` completes, each its type (``message`` by default) and its data.

        Raises:
            ServefitError: a line is longer than `MAX_LINE_BYTES`.
        """
        if self._skip_lf and chunk:  # the CR of a CRLF ended the last chunk
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        if b"\r" in chunk:
            self._skip_lf = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        if len(self._tail) > MAX_LINE_BYTES:
            raise ServefitError(f"an event line is longer than {MAX_LINE_BYTES} bytes")
        events = []
        for line in lines:
            if self._start:
                line = line.removeprefix(b"\xef\xbb\xbf")
                self._start = False
            if line:
                self._field(line)
            else:
                if self._data:
                    events.append((self._type or "message", b"\n".join(self._data)))
                self._data, self._type = [], ""
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value.decode("utf-8", "replace")
