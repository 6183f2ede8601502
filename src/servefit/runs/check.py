"""Rows that contradict themselves."""

from __future__ import annotations

from servefit.runs.table import RunTable


def check(table: RunTable) -> RunTable:
    """The table without rows that contradict themselves, and with what was found."""
    return table
