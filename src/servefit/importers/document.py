"""What a file holds, before anyone asks which tool wrote it: JSON, JSON Lines or text."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from servefit.errors import ServefitError
from servefit.importers.source import LineTooLongError, Source

Record = Mapping[str, object]

#: YAML is read at a megabyte a second.
MAX_YAML = 32 * 1024**2

#: Keys at the root of the reports that come as YAML.
_YAML = re.compile(r"^(?:benchmarks|load_summary):\s*$", re.MULTILINE)

_SPACE = re.compile(r"[\s,\ufeff]*")

#: Where an object over several lines begins, and how many are tried.
_OBJECT = re.compile(r"^[ \t]*(?=\{\s*(?:\"|$))", re.MULTILINE)
_MAX_EMBEDDED = 100
_MAX_AROUND = 16 * 1024**2

#: Lines that are named; there may be more.
_MAX_BAD_LINES = 1000

#: Longer integers become floats (infinite ones): no count or nanosecond is that long.
_MAX_DIGITS = 300


@dataclass(frozen=True)
class Document:
    """One parsed file.

    Attributes:
        source: the file.
        kind: ``json`` (one value), ``jsonl`` (an object a line, streamed) or ``text``.
        value: the JSON value.
        damage: what does not parse, as a remark; records that do are read all the same.
        bad_lines: lines of JSON Lines that begin like an object and are none, once they are read.
    """

    source: Source
    kind: Literal["json", "jsonl", "text"]
    value: object = None
    damage: str = ""
    bad_lines: list[int] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.source.name

    @cached_property
    def head(self) -> str:
        """The first 64 KiB."""
        return self.source.head()

    @cached_property
    def text(self) -> str:
        """The whole text."""
        return self.source.text()

    def records(self) -> Iterator[tuple[str, Record]]:
        """Objects with where they stand: the value itself, the items of a list, or the lines."""
        if self.kind == "json":
            if isinstance(self.value, dict):
                yield "", self.value
            elif isinstance(self.value, list):
                for i, item in enumerate(self.value):
                    if isinstance(item, dict):
                        yield f"[{i}]", item
        else:
            for number, line in enumerate(self.source.lines(), start=1):
                record = _object(line)
                if record is not None:
                    yield f"line {number}", record
                elif line.lstrip().startswith("{") and len(self.bad_lines) < _MAX_BAD_LINES:
                    self.bad_lines.append(number)

    def remark(self) -> str:
        """What could not be read, once all records are; empty if nothing."""
        if not self.bad_lines:
            return self.damage
        more = len(set(self.bad_lines)) - 1
        others = f", and {more} more lines do not" if more else ""
        return f"line {min(self.bad_lines)} does not parse as JSON{others}: left out"

    @cached_property
    def first(self) -> Record:
        """The first record; empty without one."""
        if self.kind == "text":
            return {}
        return next((record for _, record in self.records()), {})


def load(source: Source) -> Document:
    """Parse a file as far as its shape goes.

    Raises:
        ServefitError: it cannot be read, is binary or empty, or is nested too deeply.
    """
    head = source.head()
    if head.lstrip()[:1] in ("{", "["):
        if _is_jsonl(source):
            return Document(source, "jsonl")
        try:
            return Document(source, "json", parse_json(source.text()))
        except ValueError as error:
            return _several(source, str(error))
        except RecursionError:
            raise ServefitError(f"{source.name}: is nested too deeply to be a result") from None
    if _YAML.search(head):
        return _yaml(source)
    if any(_object(line) is not None for line in head.splitlines()[:-1] or head.splitlines()):
        return Document(source, "jsonl")
    return Document(source, "text")


def parse_json(text: str) -> object:
    """A JSON value; ``NaN`` and ``Infinity`` are let in, integers beyond any float are infinite.

    Raises:
        ValueError, RecursionError: it is none.
    """
    return json.loads(text.lstrip("\ufeff"), parse_int=_integer)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


def _yaml(source: Source) -> Document:
    """A YAML report, read as JSON is."""
    import yaml

    text = source.text()
    if len(text) > MAX_YAML:
        raise ServefitError(f"{source.name}: is YAML of over {MAX_YAML >> 20} MiB: give the JSON")
    try:
        value: object = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:150]
        return Document(source, "text", damage=f"looks like YAML but does not parse ({reason})")
    return Document(source, "json", value)


def _object(line: str) -> Record | None:
    if not (line.lstrip().startswith("{") and line.rstrip().endswith("}")):
        return None
    try:
        value = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value else None


def _is_jsonl(source: Source) -> bool:
    """Whether the first two lines that are not blank each hold an object.

    A first line beyond the limit of lines is one large value, and no JSON Lines.
    """
    lines = itertools.islice((line for line in source.lines() if line.strip()), 2)
    try:
        found = [_object(line) is not None for line in lines]
    except LineTooLongError:
        return False
    return found == [True, True]


def _several(source: Source, error: str) -> Document:
    """Several pretty-printed values one after another; else text that only looks like JSON."""
    damage = f"looks like JSON but does not parse ({error}): a truncated file?"
    decoder = json.JSONDecoder(parse_int=_integer)
    text = source.text()
    values: list[Record] = []
    at = _skip_space(text, 0)
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            kind: Literal["json", "text"] = "json" if values else "text"
            return Document(source, kind, values or None, damage)
        if not isinstance(value, dict):
            return Document(source, "text", damage=damage)
        values.append(value)
        at = _skip_space(text, end)
    return Document(source, "json", values)


def embedded(document: Document) -> list[Record]:
    """Objects over several lines inside a text, such as a result printed after a log."""
    decoder = json.JSONDecoder(parse_int=_integer)
    text, found, tries = document.text, list[Record](), 0
    at = 0
    while len(text) < _MAX_AROUND and tries < _MAX_EMBEDDED and (match := _OBJECT.search(text, at)):
        tries += 1
        try:
            value, at = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            at = match.end() + 1
            continue
        if isinstance(value, dict) and len(value) > 1:
            found.append(value)
    return found


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
