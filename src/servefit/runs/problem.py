"""What is wrong with one row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Severity = Literal["refused", "flagged"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A row, or a whole file, that is refused or flagged.

    Attributes:
        file: name of the file, ``-`` for stdin.
        row: position in the file, from 0 for the first row after the header; ``None`` for a
            remark about the whole file.
        column: column that holds the value; empty where the whole row is meant.
        value: the value as it stands in the file.
        reason: the limit that it breaks, and the remedy where there is one.
        severity: ``refused`` rows are left out; ``flagged`` ones are kept.
    """

    file: str
    row: int | None
    column: str
    value: str
    reason: str
    severity: Severity

    def as_dict(self) -> dict[str, str | int | None]:
        """The fields, for JSON."""
        return asdict(self)
