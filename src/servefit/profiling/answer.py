"""One streamed answer, read into its record as it arrives."""

from __future__ import annotations

import json
from typing import Any

from servefit.profiling.record import Record
from servefit.profiling.replies import message_of
from servefit.profiling.sse import EventDecoder

#: What `json.loads` does with text, without its guess at an encoding.
DECODE = json.JSONDecoder().decode
#: No request has more tokens than this: a larger count is garbage.
MAX_TOKENS = 10_000_000


class Answer:
    """Reads the events of one answer into its record.

    Attributes:
        done: ``[DONE]`` has come, after which nothing belongs to the answer.
    """

    def __init__(self, record: Record) -> None:
        """Of a request that was sent."""
        self.done = False
        self._record = record
        self._decoder = EventDecoder()
        self._counted = 0

    def feed(self, data: bytes, at_s: float) -> None:
        """Take in bytes that arrived at a time; what is wrong with them fails the record.

        Raises:
            ServefitError: a line is too long to be an event.
        """
        for kind, text in self._decoder.feed(data):
            if self._record.outcome == "failed" or self.done:
                return
            if text == b"[DONE]":
                self.done = True
                return
            try:
                event = DECODE(text.decode())
            except (ValueError, RecursionError):  # the latter by nesting
                event = None
            if not isinstance(event, dict):
                words = text.decode("utf-8", "replace")
                self._record.fail("bad_json", f"not a JSON object: {words}", at_s)
                return
            if kind == "error" or event.get("error") or event.get("object") == "error":
                words = message_of(text.decode("utf-8", "replace"))
                self._record.fail("error_event", words, at_s)
                return
            self._event(event, at_s)

    def end(self, at_s: float) -> None:
        """No more will come."""
        record = self._record
        if record.outcome == "failed":
            return
        if not self.done and record.finish_reason is None:
            record.fail("cut", "the stream ended before the answer did", at_s)
        elif record.first_token_s is None:
            counted = f", though {record.output_tokens} are counted" if record.output_tokens else ""
            record.fail("empty", f"no chunk of the answer shows a token{counted}", at_s)
        else:
            record.outcome, record.finished_s = "completed", at_s

    def _event(self, event: dict[str, Any], at_s: float) -> None:
        record = self._record
        try:
            tokens = self._count(event.get("usage"))
        except ValueError as error:
            record.fail("bad_json", str(error), at_s)
            return
        choices = event.get("choices")
        if not choices:
            return
        try:
            choice = choices[0]
            record.finish_reason = choice.get("finish_reason") or record.finish_reason
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            text = choice.get("text") or delta.get("content") or delta.get("tool_calls")
        except (AttributeError, LookupError, TypeError):
            record.fail("bad_json", f"malformed choices: {choices}", at_s)
            return
        # Text may be empty while tokens are produced (half a character): counts go before text.
        if not text and not reasoning and not (tokens or 0) > 0:
            record.empty_chunks += 1
            return
        record.reasoning_chunks += bool(reasoning)
        if record.first_token_s is None:
            record.first_token_s = at_s
        record.last_token_s = at_s
        record.chunk_s.append(at_s)
        record.chunk_tokens.append(tokens)

    def _count(self, usage: Any) -> int | None:
        """Tokens since the last count; ``None``: unknown."""
        if not isinstance(usage, dict):
            return None
        inputs, outputs = (_whole(usage, name) for name in ("prompt_tokens", "completion_tokens"))
        if outputs is None:
            return None
        self._record.output_tokens = outputs
        if inputs is not None:
            self._record.input_tokens = inputs
        if not self._counted and self._record.chunk_s:  # only the last chunk has a count
            return None
        tokens, self._counted = outputs - self._counted, outputs
        return tokens if tokens >= 0 else None


def _whole(usage: dict[str, Any], name: str) -> int | None:
    """A count of tokens; ``None`` where there is none. Raises `ValueError` for what is no count."""
    value = usage.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_TOKENS:
        raise ValueError(f"usage.{name} is no number of tokens: {value!s:.40}")
    return value
