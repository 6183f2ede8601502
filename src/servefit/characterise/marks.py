"""Names of the ranges around engine steps, the same in every profiler: written and read here.

    servefit decode batch=16 input=256 output=12 token=11

is the decode step that yields the 11th token of each of 16 requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from servefit.characterise.profile import DECODE, MIXED, PREFILL
from servefit.characterise.run import Size

PREFIX = "servefit "
_MARK = re.compile(
    rf"{PREFIX}({PREFILL}|{DECODE}|{MIXED}) batch=(\d+) input=(\d+) output=(\d+)"
    r"(?: token=(\d+))?"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """One engine step: its phase, its batch, and for decode the token that it yields."""

    phase: str
    size: Size
    token: int | None = None

    @property
    def name(self) -> str:
        """The range's name."""
        s = self.size
        text = f"{PREFIX}{self.phase} batch={s.batch} input={s.input_tokens}"
        text += f" output={s.output_tokens}"
        return text if self.token is None else f"{text} token={self.token}"


def read_mark(name: str) -> Mark | None:
    """The step that a range marks; ``None`` for any other range."""
    return _mark(_MARK.fullmatch(name))


def find_mark(text: str) -> Mark | None:
    """The step that is marked somewhere in a text, as in Nsight Compute's columns of ranges."""
    return _mark(_MARK.search(text))


def _mark(match: re.Match[str] | None) -> Mark | None:
    if match is None:
        return None
    numbers = [int(n) for n in match.groups()[1:4]]
    if min(numbers) < 1:
        return None
    return Mark(match[1], Size(*numbers), int(match[5]) if match[5] else None)
