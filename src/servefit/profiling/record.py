"""What is asked of the server in one request, and what was measured of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["running", "completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Ask:
    """Lengths wanted of one request, in tokens."""

    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Record:
    """One request. Times are seconds of ``time.perf_counter``; ``None`` is unknown.

    Attributes:
        ask: the lengths asked for.
        scheduled_s: when it should have been sent.
        sent_s: when it was handed to the socket.
        first_token_s, last_token_s: arrival of the first and last chunk that carries tokens.
        finished_s: end of the answer, or the moment of failure.
        chunk_s: arrival of each chunk that carries tokens.
        chunk_tokens: tokens of each; ``None`` where the server does not report it.
        input_tokens, output_tokens: as the server counted them.
        finish_reason: the server's word for why it stopped.
        empty_chunks: chunks that carry no token, such as a chat's opening one.
        reconnects: connections that were closed when it was to use them again.
        reasoning_chunks: chunks that carry reasoning, which counts as output.
        outcome: what became of it.
        error: kind of failure in one word, such as ``http_503`` or ``cut``.
        detail: the failure in words, without secrets.
        retry_after_s: the pause that the server asked for.
        pause_s: how long its slot of a closed loop then pauses, after a failure.
        warmup: sent to bring the load to its steady state; never part of the result.
    """

    ask: Ask
    scheduled_s: float
    sent_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    finished_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    empty_chunks: int = 0
    reasoning_chunks: int = 0
    reconnects: int = 0
    outcome: Outcome = "running"
    error: str | None = None
    detail: str | None = None
    retry_after_s: float | None = None
    pause_s: float = 0.0
    warmup: bool = False

    @property
    def e2e_s(self) -> float | None:
        """Sent to last token."""
        if self.sent_s is None or self.last_token_s is None:
            return None
        return self.last_token_s - self.sent_s

    @property
    def ttft_s(self) -> float | None:
        """Sent to first token."""
        if self.sent_s is None or self.first_token_s is None:
            return None
        return self.first_token_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """(E2E - TTFT) / (output tokens - 1); ``None`` for a single token or a single chunk."""
        if self.e2e_s is None or self.ttft_s is None or (self.output_tokens or 0) < 2:
            return None
        if self.last_token_s == self.first_token_s:
            return None
        assert self.output_tokens is not None  # for the type checker
        return (self.e2e_s - self.ttft_s) / (self.output_tokens - 1)

    @property
    def first_tokens(self) -> float | None:
        """Tokens that came together as the first; ``None``: unknown.

        By the server's counts, else by the mean over chunks where there are fewer than tokens.
        """
        first = [n for at_s, n in self._chunks() if at_s == self.first_token_s]
        if None not in first:
            return float(sum(n or 0 for n in first))
        if self.output_tokens is None:
            return None
        return max(1.0, self.output_tokens / len(self.chunk_s)) * len(first)

    @property
    def later_tokens(self) -> int | None:
        """Tokens that came after them; ``None``: the server did not count them."""
        later = [n for at_s, n in self._chunks() if at_s != self.first_token_s]
        return None if None in later else sum(n or 0 for n in later)

    def _chunks(self) -> Iterator[tuple[float, int | None]]:
        return zip(self.chunk_s, self.chunk_tokens, strict=True)

    def fail(self, error: str, detail: str, at_s: float) -> None:
        """Mark as failed."""
        self.outcome, self.error, self.detail, self.finished_s = "failed", error, detail, at_s

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return asdict(self)
