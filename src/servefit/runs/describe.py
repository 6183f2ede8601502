"""The schemas and the rules of the check, as data and as tables for the documentation.

``python -m servefit.runs.describe docs/runs.md`` writes the tables of that file anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from servefit.runs.identities import BOUNDS, IDENTITIES
from servefit.runs.schema import COLUMNS, OTHER_NAMES, Column, Kind


def columns(kind: Kind) -> list[dict[str, Any]]:
    """The documented columns of one kind of table, in order."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "unit": column.unit,
            "range": value_range(column),
            "meaning": column.meaning,
            "other_names": OTHER_NAMES.get(column.name, "").split(),
        }
        for column in COLUMNS[kind].values()
    ]


def value_range(column: Column) -> str:
    """The range of a column in words; empty where any value will do."""
    parts = []
    if column.above is not None:
        parts.append(f"> {column.above:g}")
    if column.at_least is not None:
        parts.append(f">= {column.at_least:g}")
    if column.at_most is not None:
        parts.append(f"<= {column.at_most:g}")
    return ", ".join(parts)


def columns_markdown(kind: Kind) -> str:
    """The table of columns."""
    return _table(
        ("column", "type", "unit", "range", "meaning", "also read as"),
        (
            (
                f"`{c['name']}`",
                c["type"],
                c["unit"],
                c["range"],
                c["meaning"],
                ", ".join(f"`{name}`" for name in c["other_names"]),
            )
            for c in columns(kind)
        ),
    )


def identities_markdown() -> str:
    """The table of what must hold between columns."""
    return _table(
        ("column", "must equal", "refused beyond", "flagged beyond", "holds for", "why so much"),
        (
            (
                f"`{i.column}`",
                f"`{i.formula}`",
                _percent(i.refuse),
                _percent(i.flag),
                {"static": "static batches", "serving": "all but static batches"}.get(
                    i.mode or "", "all"
                ),
                i.why,
            )
            for i in IDENTITIES
        ),
    )


def bounds_markdown() -> str:
    """The table of what a column cannot exceed."""
    return _table(
        ("column", "cannot exceed", "let pass", "then", "because"),
        ((f"`{b.column}`", b.limit, _percent(b.tolerance), b.severity, b.remedy) for b in BOUNDS),
    )


#: Name of a generated table -> the table.
TABLES: dict[str, Callable[[], str]] = {
    "runs": lambda: columns_markdown("runs"),
    "steps": lambda: columns_markdown("steps"),
    "identities": identities_markdown,
    "bounds": bounds_markdown,
}


def with_tables(text: str) -> str:
    """``text`` with what stands between ``<!-- table NAME -->`` and ``<!-- end -->`` made anew."""
    return re.sub(
        r"(<!-- table (\w+) -->\n).*?(<!-- end -->)",
        lambda match: match[1] + TABLES[match[2]]() + match[3],
        text,
        flags=re.DOTALL,
    )


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _percent(share: float | None) -> str:
    return "never" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
