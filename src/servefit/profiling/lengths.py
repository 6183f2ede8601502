"""How long requests are, and when they arrive; always from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from servefit.errors import ServefitError
from servefit.profiling.record import Ask
from servefit.traces import parse_trace

Arrivals = Literal["constant", "poisson", "trace"]
#: No server takes longer requests.
MAX_TOKENS = 10_000_000
LENGTH_HELP = "N, uniform:LOW:HIGH or lognormal:MEAN:CV"


@dataclass(frozen=True)
class Length:
    """A length in tokens: fixed, or drawn; its text is its name in a plan.

    Args:
        text: ``N``; ``uniform:LOW:HIGH``, both included; ``lognormal:MEAN:CV``, with the
            coefficient of variation CV = standard deviation / mean.
    """

    text: str

    @property
    def fixed(self) -> int | None:
        """The length where it is fixed."""
        return int(self.text) if self.text.isdecimal() else None

    @property
    def mean(self) -> float:
        """The mean length."""
        kind, a, b = self._parse()
        return a if kind == "lognormal" else (a + b) / 2

    def sampler(self, rng: random.Random) -> Callable[[], int]:
        """A function that draws lengths."""
        kind, a, b = self._parse()
        if kind == "fixed":
            return lambda: int(a)
        if kind == "uniform":
            return lambda: rng.randint(int(a), int(b))
        sigma = math.sqrt(math.log1p(b * b))
        mu = math.log(a) - sigma * sigma / 2
        return lambda: max(1, round(rng.lognormvariate(mu, sigma)))

    def _parse(self) -> tuple[str, float, float]:
        """Kind and its two numbers; raises `ServefitError` for a text that is none."""
        kind, *values = self.text.split(":")
        if self.text.isdecimal():
            kind, values = "fixed", [self.text] * 2
        try:
            a, b = map(float, values)
        except ValueError:
            a = b = math.nan
        in_range = 1 <= a <= MAX_TOKENS
        if kind in ("fixed", "uniform") and in_range and a <= b <= MAX_TOKENS:
            if a.is_integer() and b.is_integer():
                return kind, a, b
        elif kind == "lognormal" and in_range and 0 < b < math.inf:
            return kind, a, b
        raise ServefitError(f"length {self.text!r}: give {LENGTH_HELP}, from 1 to {MAX_TOKENS}")

    def check(self) -> Length:
        """Itself; raises `ServefitError` for a text that is no length."""
        self._parse()
        return self


@dataclass(frozen=True)
class TraceRow:
    """One request of a trace."""

    arrival_s: float
    ask: Ask


def read_trace(path: str | Path, max_tokens: int | None = None) -> tuple[list[TraceRow], int]:
    """Requests of a trace, see `servefit.traces`, by arrival, the first at 0; and how many of its
    rows were left out, for having no prompt or output or more than ``max_tokens`` tokens in all.

    Raises:
        ServefitError: the file cannot be read, lacks a column, or holds no usable row.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ServefitError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise ServefitError(f"{path}: is no UTF-8 text") from None
    columns = "a trace has arrival_s, input_tokens, output_tokens"
    requests = parse_trace(text, str(path), arrivals=True, how=columns)
    rows = []
    for request in requests:
        lengths = request.input_tokens, request.output_tokens
        if not all(length.is_integer() for length in lengths):
            raise ServefitError(f"{path}: line {request.line}: lengths must be whole: {lengths}")
        if min(lengths) >= 1 and (max_tokens is None or sum(lengths) <= max_tokens):
            rows.append(TraceRow(request.arrival_s or 0.0, Ask(*map(int, lengths))))
    if not rows:
        raise ServefitError(f"{path}: no request of the trace fits this server")
    rows.sort(key=lambda row: row.arrival_s)
    first_s = rows[0].arrival_s
    rebased = [TraceRow(row.arrival_s - first_s, row.ask) for row in rows]
    return rebased, len(requests) - len(rows)


def draw_asks(
    input_length: Length | None,
    output_length: Length | None,
    trace: list[TraceRow] | None,
    *,
    max_tokens: int | None,
    seed: int,
) -> Iterator[Ask]:
    """Endless lengths: of the trace in a random order, or drawn independently.

    Pairs longer than ``max_tokens`` are drawn again (fixed ones are refused).
    """
    rng = random.Random(seed)
    if trace is not None:
        while True:
            for row in rng.sample(trace, len(trace)):
                yield row.ask
    if input_length is None or output_length is None:
        raise ServefitError("no lengths: give --input-tokens and --output-tokens, or --trace")
    draw_input, draw_output = input_length.sampler(rng), output_length.sampler(rng)
    rejected = 0
    while True:
        ask = Ask(draw_input(), draw_output())
        if max_tokens is None or ask.input_tokens + ask.output_tokens <= max_tokens:
            rejected = 0
            yield ask
        else:
            rejected += 1
            if rejected > 1000 or (input_length.fixed and output_length.fixed):
                raise ServefitError(
                    f"input {input_length.text} + output {output_length.text} tokens: more than "
                    f"the server's max_model_len {max_tokens}: ask for shorter ones"
                )


def arrival_times(kind: Arrivals, rate_per_s: float, seed: int) -> Iterator[float]:
    """Endless arrival times from 0 s on: evenly spaced, or a Poisson process."""
    rng = random.Random(seed)
    at_s = 0.0
    while True:
        yield at_s
        at_s += 1 / rate_per_s if kind == "constant" else rng.expovariate(rate_per_s)
