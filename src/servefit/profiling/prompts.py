"""Prompts of an exact number of tokens with random contents, so that no prefix cache can help."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Ordinary tokens in every known vocabulary: beyond the special and the byte tokens.
TOKEN_IDS = range(300, 1000)
#: Short common words; with a space in front, most are one token to most tokenizers.
WORDS = re.findall(
    r"\w+",
    """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    """,
)
#: A word is counted this often at once, to tell its own tokens from those around the text.
REPEATS = 8

#: Counts the tokens of a text as the server does; ``None`` where it does not tell.
Counter = Callable[[str], Awaitable[int | None]]


class Prompts(Protocol):
    """A source of prompts."""

    def make(self, tokens: int) -> str:
        """A fresh prompt of that many tokens, as JSON."""


@dataclass(frozen=True)
class TokenIdPrompts:
    """Prompts as lists of token ids.

    Attributes:
        ids: the ids to choose from, as text.
        rng: where the choice comes from.
    """

    ids: Sequence[str]
    rng: random.Random

    def make(self, tokens: int) -> str:
        """A fresh prompt of that many tokens, as JSON."""
        return f"[{','.join(self.rng.choices(self.ids, k=tokens))}]"


@dataclass(frozen=True)
class TextPrompts:
    """Prompts as text of an exact number of tokens.

    Attributes:
        words: words by their number of tokens; there are always some of one token.
        overhead: tokens that the server adds to every prompt (BOS, a chat template).
        rng: where the choice comes from.
    """

    words: dict[int, Sequence[str]]
    overhead: int
    rng: random.Random

    def text(self, tokens: int) -> str:
        """Random words of ``tokens`` tokens, the server's own included."""
        left = max(1, tokens - self.overhead)
        chosen = []
        sizes = [size for size, words in self.words.items() for _ in words]
        while left:
            size = self.rng.choice(sizes)
            if size > left:
                size = 1
            chosen.append(self.rng.choice(self.words[size]))
            left -= size
        return " " + " ".join(chosen)

    def make(self, tokens: int) -> str:
        """A fresh prompt of that many tokens, as JSON."""
        return json.dumps(self.text(tokens))


async def learn_words(
    count: Counter, rng: random.Random, words: Sequence[str] = WORDS
) -> TextPrompts | None:
    """Learn how the server counts words, and so how to write a text of any number of tokens.

    With c(n) the count of a word said n times, its own tokens are (c(2R) - c(R)) / R and the
    server's are c(R) - R x own. Words that do not add up that way are not used.

    Returns:
        ``None`` where the server does not count, or has no words of one token.
    """
    by_size: dict[int, list[str]] = {}
    overheads: list[int] = []
    for word in words:
        once, twice = await count(f" {word}" * REPEATS), await count(f" {word}" * REPEATS * 2)
        if once is None or twice is None:
            return None
        size, rest = divmod(twice - once, REPEATS)
        if size >= 1 and rest == 0:
            by_size.setdefault(size, []).append(word)
            overheads.append(once - REPEATS * size)
    if 1 not in by_size:
        return None
    overhead = max(set(overheads), key=overheads.count)
    return TextPrompts(dict(by_size), overhead, rng)
