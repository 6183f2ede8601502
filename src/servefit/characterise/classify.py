"""Kernel classes by name, from a table of patterns that a user can extend."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from servefit.errors import ServefitError

#: What no rule matches; it is always shown.
UNCLASSIFIED = "unclassified"
#: Rule class of operators that count for their caller.
INHERIT = "inherit"
#: What such operators are called where nobody called them.
BOOKKEEPING = "bookkeeping"
#: Time of a step in which no kernel ran: the CPU's own work, launches, waiting.
OUTSIDE = "CPU/idle"

#: Groups of the paper's Fig. 5; any other class is "other".
ATTENTION, GEMM, OTHER = "attention", "GEMM", "other"
GROUPS: Mapping[str, str] = {
    "attention": ATTENTION,
    "GEMM": GEMM,
    "GEMV": GEMM,
    "MoE": GEMM,
    OUTSIDE: OUTSIDE,
    UNCLASSIFIED: UNCLASSIFIED,
}
GROUP_ORDER = (ATTENTION, GEMM, OTHER, UNCLASSIFIED, OUTSIDE)


def group_of(kernel_class: str) -> str:
    """The group of Fig. 5 that a class belongs to."""
    return GROUPS.get(kernel_class, OTHER)


@dataclass(frozen=True)
class Rule:
    """Names that any of the patterns is found in are of this class."""

    kernel_class: str
    patterns: tuple[re.Pattern[str], ...]

    def matches(self, name: str) -> bool:
        """Whether any pattern is found in the name."""
        return any(pattern.search(name) for pattern in self.patterns)


@dataclass(frozen=True)
class KernelTable:
    """Rules in order; the first that matches decides."""

    rules: tuple[Rule, ...]

    def classify(self, name: str) -> str:
        """The class of a kernel or operator; `UNCLASSIFIED` where no rule matches."""
        return _classify(self, name)

    def __hash__(self) -> int:
        """By identity: tables are few, and looked up for every kernel."""
        return id(self)


@lru_cache(maxsize=100_000)
def _classify(table: KernelTable, name: str) -> str:
    return next((r.kernel_class for r in table.rules if r.matches(name)), UNCLASSIFIED)


def load_kernel_table(files: Sequence[str | Path] = ()) -> KernelTable:
    """The built-in table, with the rules of the user's files before it.

    Raises:
        ServefitError: a file cannot be read, is not TOML, or a rule or pattern in it is wrong.
    """
    rules: list[Rule] = []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise ServefitError(f"{file}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise ServefitError(f"{file}: is not UTF-8 text, expected TOML") from None
        rules += parse_rules(text, str(file))
    built_in = resources.files("servefit.characterise").joinpath("kernels.toml")
    return KernelTable((*rules, *parse_rules(built_in.read_text("utf-8"), "kernels.toml")))


def parse_rules(text: str, where: str) -> list[Rule]:
    """Rules from the text of a kernel table, called ``where`` in errors.

    Raises:
        ServefitError: as `load_kernel_table`.
    """
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ServefitError(f"{where}: is not TOML: {error}") from None
    rules = values.get("rule")
    if not isinstance(rules, list) or not rules or set(values) - {"rule"}:
        raise ServefitError(f"{where}: must hold [[rule]] tables with class and patterns, only")
    return [_rule(entry, f"{where}: rule {n}") for n, entry in enumerate(rules, start=1)]


def _rule(entry: Any, where: str) -> Rule:
    if not isinstance(entry, dict) or set(entry) != {"class", "patterns"}:
        raise ServefitError(f"{where}: must have exactly the keys class and patterns")
    name, patterns = entry["class"], entry["patterns"]
    if not isinstance(name, str) or not name.strip():
        raise ServefitError(f"{where}: class must be a name")
    if not isinstance(patterns, list) or not patterns:
        raise ServefitError(f"{where} ({name}): patterns must be a list of regular expressions")
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern, re.IGNORECASE))
        except (re.error, TypeError, RecursionError, OverflowError) as error:
            raise ServefitError(
                f"{where} ({name}): {pattern!r} is no regular expression: {error}"
            ) from None
    return Rule(name.strip(), tuple(compiled))
