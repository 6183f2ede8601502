"""What is wrong with one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Finding:
    """What one rule found in a table.

    Attributes:
        mask: the rows.
        column: the column to blame; empty where the whole row is meant.
        reason: the reason for a row, by its index in the frame.
        severity: as of a `Problem`.
    """

    mask: npt.NDArray[np.bool_]
    column: str
    reason: Callable[[int], str]
    severity: Severity = "refused"
