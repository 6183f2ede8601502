"""A control of the page: what it may hold, and reading a query string."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from servefit.errors import ServefitError

#: A longer text is none that a control sends, unless it is one of its choices.
MAX_TEXT = 200
#: Neither 1_000 nor 1e3, digits of other scripts, nan or inf: what `float` reads besides.
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True)
class Field:
    """A control.

    Attributes:
        name: in the query string.
        label, unit, group, hint: as shown.
        kind: ``"choice"`` is one of ``choices``; ``"number"`` is within ``low`` and ``high``.
        default: value of a control that the query string does not name; ``None`` is unset.
        choices: value and label of each.
        low, high, step: of a number; ``log`` makes the slider's steps ratios.
        optional: whether it may be left empty.
        whole: whether it must be an integer.
        beside: the control whose row it shares.
        when: another control and the value of it with which this one counts.
        needs: another control, and whether it must hold something for this one to do anything.
    """

    name: str
    label: str
    kind: Literal["choice", "number"]
    default: Any = None
    group: str = ""
    hint: str = ""
    unit: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    low: float = 0.0
    high: float = 1.0
    step: float = 1.0
    log: bool = False
    optional: bool = False
    whole: bool = False
    beside: str = ""
    when: tuple[str, str] | None = None
    needs: tuple[str, bool] | None = None

    @property
    def longest(self) -> int:
        """Characters of the longest text that it may send."""
        return max([MAX_TEXT, *(len(value) for value, _ in self.choices)])

    def parse(self, text: str) -> Any:
        """The value; raises `ServefitError` with value, limit and remedy."""
        if self.kind == "choice":
            if text not in (value for value, _ in self.choices):
                raise ServefitError(f"{shortened(text)} is none of the choices: pick one")
            return text
        allowed = f"{plain(self.low)} to {plain(self.high)}"
        text = text.strip(" ")
        if not text:
            if self.optional:
                return None
            raise ServefitError(f"give a number from {allowed}")
        if not _DECIMAL.fullmatch(text):
            raise ServefitError(f"{shortened(text)} is not a number: write it as 1200 or 0.5")
        value = float(text)
        if not self.low <= value <= self.high:
            raise ServefitError(f"{shortened(text)} is outside {allowed}")
        if self.whole and value != round(value):
            raise ServefitError(f"{shortened(text)} is not a whole number")
        return int(value) if self.whole else value


@dataclass
class FieldError(Exception):
    """What is wrong with which control; the key ``""`` is of them all together."""

    errors: dict[str, str]


def plain(value: float) -> str:
    """A bound in full: ``1,000,000``."""
    return f"{value:,.10g}"


def shortened(text: str, most: int = 40) -> str:
    """A text from outside, quoted and cut."""
    return repr(text if len(text) <= most else text[:most] + "...")


def read(fields: Sequence[Field], items: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Values of all controls from a query string; what is not named has its default.

    Raises:
        FieldError: everything that is wrong, not just the first.
    """
    known = {field.name: field for field in fields}
    values = {field.name: field.default for field in fields}
    errors: dict[str, str] = {}
    seen: set[str] = set()
    for name, text in items:
        if name not in known:
            errors[""] = f"there is no control {shortened(name)}"
        elif name in seen:
            errors[name] = "given more than once"
        elif len(text) > known[name].longest:
            errors[name] = f"a text of {len(text)} characters: at most {known[name].longest}"
        else:
            try:
                values[name] = known[name].parse(text)
            except ServefitError as error:
                errors[name] = str(error)
        seen.add(name)
    if errors:
        raise FieldError(errors)
    return values
