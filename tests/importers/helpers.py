"""Import one text as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from servefit.importers import Import, Point, import_files, parse_settings

FIXTURES = Path(__file__).parent / "fixtures"


def read(path: Path | str, *settings: str) -> Import:
    """Import a file or folder."""
    return import_files([path], parse_settings(settings))


def one(path: Path | str, *settings: str) -> Point:
    """The one point of a file."""
    points = read(path, *settings).points
    assert len(points) == 1, [p.place for p in points]
    return points[0]


def saved(folder: Path, value: Any, name: str = "result") -> Path:
    """A file with a JSON value, or a text or bytes as they are."""
    path = folder / name
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def said(point: Point, outcome: str) -> str:
    """All messages of an outcome, joined."""
    return "\n".join(v.message for v in point.verdicts if v.outcome == outcome)
