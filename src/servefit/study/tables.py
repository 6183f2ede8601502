"""Tables of a study: one description, written as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        key: of the rows, and the header in CSV and JSON; it names the unit.
        header: in Markdown.
        decimals: of numbers in Markdown; ``None`` prints them as they are.
        missing: what Markdown shows for an unknown value.
    """

    key: str
    header: str
    decimals: int | None = None
    missing: str = "-"

    def show(self, value: object) -> str:
        """A cell in Markdown."""
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return self.missing
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, (int, float)) and self.decimals is not None:
            return f"{value:,.{self.decimals}f}"
        if isinstance(value, float):
            return f"{value:,.10g}"
        return str(value).replace("|", "\\|").replace("\n", " ")


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: stem of its files.
        title: one line.
        columns, rows: what it shows; a row may lack a key.
        notes: what a reader must know, one sentence each.
        long: too long for the report, which links to it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    long: bool = False

    def markdown(self) -> str:
        """The table and its notes."""
        lines = [f"**{self.title}**", ""]
        lines += markdown_rows(
            [c.header for c in self.columns],
            [[c.show(row.get(c.key)) for c in self.columns] for row in self.rows],
            numeric=[self._numeric(c.key) for c in self.columns],
        )
        lines += [""] + [f"- {note}" for note in self.notes] + [""] * bool(self.notes)
        return "\n".join(lines)

    def csv(self) -> str:
        """Full precision; unknown is an empty cell."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([c.key for c in self.columns])
        for row in self.rows:
            values = [_finite(row.get(c.key)) for c in self.columns]
            writer.writerow(["" if value is None else value for value in values])
        return stream.getvalue()

    def json(self) -> str:
        """Full precision; unknown is null."""
        rows = [{c.key: _finite(row.get(c.key)) for c in self.columns} for row in self.rows]
        document = {"title": self.title, "rows": rows, "notes": list(self.notes)}
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def _numeric(self, key: str) -> bool:
        values = [row.get(key) for row in self.rows]
        return any(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)


def markdown_rows(
    headers: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> list[str]:
    """Lines of a Markdown table; numeric columns are right-aligned."""
    rule = ["--:" if right else "---" for right in numeric]
    return ["| " + " | ".join(cells) + " |" for cells in (headers, rule, *rows)]


def _finite(value: Any) -> Any:
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
