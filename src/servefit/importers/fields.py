"""Values out of a record under whichever of their names, with where each came from."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from servefit.importers.document import Record
from servefit.importers.point import Point, excerpt

_OTHER = re.compile(r"[^a-z0-9]+")
_NUMBER = re.compile(r"[+-]?(\d[\d,]*\.?\d*|\.\d+)([eE][+-]?\d+)?")
#: No count, rate or nanosecond is beyond these; what is, is unknown.
SMALLEST, LARGEST = 1e-30, 1e30

_UNKNOWN = {"", "none", "null", "n/a", "na", "nan", "-", "inf", "infinity"}


def normal(key: object) -> str:
    """A key without case, spaces and punctuation: ``P99.9 TTFT (ms):`` is ``p99_9_ttft_ms``."""
    text = str(key)
    return _normal(text) if len(text) < 100 else _normal.__wrapped__(text)


@lru_cache(maxsize=4096)
def _normal(text: str) -> str:
    return _OTHER.sub("_", text.lower()).strip("_")


def to_number(raw: object) -> float | None:
    """A number as JSON, CSV and logs write it; ``None`` for anything else.

    Thousands separators and surrounding blanks are let pass; NaN, infinities and sizes that no
    measurement has are unknown.
    """
    if isinstance(raw, bool) or raw is None:
        return None
    if isinstance(raw, str):
        text = raw.strip().strip('"')
        if not _NUMBER.fullmatch(text):
            return None
        raw = text.replace(",", "")
    if not isinstance(raw, int | float | str):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    size = abs(value)
    return value if size == 0 or SMALLEST < size < LARGEST else None


def to_text(raw: object) -> str | None:
    """A name; ``None`` for blanks, nested values and what says unknown."""
    if isinstance(raw, str) and raw.strip().lower() not in _UNKNOWN:
        return excerpt(raw, 200)
    return None


def is_infinite(raw: object) -> bool:
    """Whether a value says infinity, as the rate of a benchmark that sends all at once."""
    if isinstance(raw, str):
        return raw.strip().lower() in ("inf", "infinity", "float('inf')")
    return isinstance(raw, float) and math.isinf(raw)


def dig(value: object, *path: str) -> object:
    """A nested value by its keys, each as `normal` sees it; ``None`` where one is missing."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        if key in value:
            value = value[key]
            continue
        value = next((v for k, v in value.items() if normal(k) == normal(key)), None)
    return value


def mapping(value: object) -> Record:
    """The value if it is an object; else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[object]:
    """The value if it is an array; else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def floats(value: object) -> list[float]:
    """The numbers of an array; what is none is left out."""
    return [v for item in sequence(value) if (v := to_number(item)) is not None]


@dataclass
class Fields:
    """A record whose values become readings of a point.

    Attributes:
        record: the record.
        point: where readings go.
        at: prefix of the key in explanations.
    """

    record: Record
    point: Point
    at: str = ""
    _keys: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        """Index the keys."""
        self._keys = {}
        for key in self.record:
            self._keys.setdefault(normal(key), key)

    def raw(self, *keys: str) -> tuple[str, object]:
        """The first of the keys whose value is not null, and the value; else an empty key."""
        for wanted in keys:
            key = self._keys.get(normal(wanted))
            if key is not None and self.record[key] is not None:
                return key, self.record[key]
        return "", None

    def number(self, *keys: str) -> float | None:
        """The first number under one of the keys, in the file's unit."""
        for key in keys:
            value = to_number(self.raw(key)[1])
            if value is not None:
                return value
        return None

    def text(self, *keys: str) -> str | None:
        """The first name under one of the keys."""
        return next((t for key in keys if (t := to_text(self.raw(key)[1])) is not None), None)

    def take(self, column: str, *keys: str, divisor: float = 1.0, how: str = "") -> float | None:
        """Read a number into a column, divided by ``divisor``; the column's value after that."""
        for wanted in keys:
            key, raw = self.raw(wanted)
            value = to_number(raw)
            if value is None:
                if key and not isinstance(raw, Mapping | list):
                    self.point.notes.append(f"{self.at}{key} = {excerpt(raw)}: no number, unknown")
                continue
            self.point.put(column, value / divisor, self.at + key, raw, how or _how(divisor))
            return self.point.number(column)
        return None

    def take_text(self, column: str, *keys: str) -> str | None:
        """Read a name into a column."""
        for wanted in keys:
            key, raw = self.raw(wanted)
            text = to_text(raw)
            if text is not None:
                self.point.put(column, text, self.at + key, raw)
                return text
        return None

    def take_switch(self, column: str, *keys: str) -> None:
        """Read a yes or no into a column."""
        for wanted in keys:
            key, raw = self.raw(wanted)
            if isinstance(raw, str) and raw.lower() in ("true", "false"):
                raw = raw.lower() == "true"
            if isinstance(raw, bool):
                self.point.put(column, raw, self.at + key, raw)
                return

    def below(self, *keys: str) -> Fields:
        """The fields of a nested record; empty without it."""
        key, raw = self.raw(*keys)
        return Fields(mapping(raw), self.point, f"{self.at}{key}.")


def _how(divisor: float) -> str:
    names = {1e3: "ms / 1000", 1e6: "us / 1e6", 1e9: "ns / 1e9", 60.0: "per minute / 60"}
    return "" if divisor == 1 else names.get(divisor, f"/ {divisor:g}")


def flatten(record: Record, depth: int = 4) -> Iterator[tuple[str, object]]:
    """Leaves of nested objects with dotted keys, down to ``depth``."""
    for key, value in record.items():
        if isinstance(value, Mapping) and depth > 0:
            for below, leaf in flatten(value, depth - 1):
                yield f"{key}.{below}", leaf
        else:
            yield str(key), value
