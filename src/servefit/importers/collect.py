"""From files to points to rows: the one way through every format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN, get_hardware
from servefit.importers import derive, judge, names, pairs, registry
from servefit.importers.document import Document, load
from servefit.importers.point import Point, Reading
from servefit.importers.series import REPEATS, judge_series
from servefit.importers.settings import Settings
from servefit.importers.source import Source, find_sources

#: Points of one import; a file that gives more is no summary.
MAX_POINTS = 5_000

#: Without these a point is no row: (any of these columns, what to set).
NEEDED = (
    (("model",), "model=NAME"),
    (("input_tokens",), "input_tokens=N"),
    (("output_tokens",), "output_tokens=N"),
    (("batch", "mean_batch", "max_num_seqs"), "max_num_seqs=N"),
    (
        ("total_tokens_per_s", "requests_per_s", "output_tokens_per_s", "e2e_mean_s"),
        "requests_per_s=R",
    ),
)

#: Name of the check that they are all there.
MISSING = "missing"

#: Asked for, but a row without them is of use: they stay empty, and are never defaulted.
WANTED = (("gpu", "gpu=NAME"), ("tensor_parallel_size", "tensor_parallel_size=N"))


@dataclass
class Import:
    """What came of an import.

    Attributes:
        points: all points read, refused ones too.
        unread: file -> why it gave none, or what of it could not be read.
    """

    points: list[Point] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[Point]:
        """The points that are rows."""
        return [p for p in self.points if p.is_run and not p.refused]

    @property
    def repeats(self) -> int:
        """Runs that were read twice, and kept once."""
        twice = (any(v.check == REPEATS for v in p.verdicts) for p in self.points if p.is_run)
        return sum(twice)

    @property
    def missing(self) -> dict[str, int]:
        """What to ``--set``, as ``key=VALUE``, and how many points lack it."""
        asked: dict[str, int] = {}
        for point in self.points:
            if point.is_run:
                for setting in missing(point):
                    asked[setting] = asked.get(setting, 0) + 1
        return asked


def missing(point: Point) -> list[str]:
    """Settings that a point lacks: those it needs, and those it should have."""
    return needed(point) + [setting for column, setting in WANTED if not point.has(column)]


def needed(point: Point) -> list[str]:
    """Settings without which it is no row."""
    lacking = [s for columns, s in NEEDED if not any(point.has(c) for c in columns)]
    if point.has(pairs.NEEDS_DURATION) and not point.has("duration_s"):
        return [*lacking, "duration_s=SECONDS"]
    is_batch = point.shown("mode") != "serving"
    return ["batch=N" if is_batch and s == "max_num_seqs=N" else s for s in lacking]


def import_files(paths: Sequence[str | Path], settings: Settings) -> Import:
    """Read every file, complete and check its points.

    Files that are not understood, and damaged ones, are named in ``unread``; one file's trouble
    costs no other file.

    Raises:
        ServefitError: a path cannot be read at all.
    """
    result = Import()
    for source in find_sources(paths):
        try:
            points, remark = _read(source)
        except ServefitError as error:
            result.unread[source.name] = _without_name(str(error), source.name)
            continue
        except RecursionError:
            result.unread[source.name] = "is nested too deeply to be a result"
            continue
        result.points += points
        if remark:
            result.unread[source.name] = remark
    result.points += pairs.from_snapshots(result.points)
    pairs.suggest_servers(result.points)
    for point in result.points:
        if point.is_run:
            names.suggest(point, point.file)
            complete(point, settings)
            names.compare(point)
    judge_series([p for p in result.points if p.is_run])
    return result


def _read(source: Source) -> tuple[list[Point], str]:
    """The points of a file, and what in it could not be read."""
    document = load(source)
    found = registry.find(document)
    if found is None:
        raise ServefitError(_not_understood(document))
    form, part = found
    points = list(itertools.islice(form.read(part), MAX_POINTS + 1))
    if len(points) > MAX_POINTS:
        raise ServefitError(f"holds more than {MAX_POINTS} points: give its summary")
    if not points:
        raise ServefitError(f"is a result of {form.NAME} without any load point in it")
    return points, part.remark()


def complete(point: Point, settings: Settings) -> None:
    """Derive what follows, and run every check; what then is missing is a reason to refuse."""
    settings.apply(point)
    _canonical_gpu(point)
    _known_dtypes(point)
    for check in judge.FIRST:
        check(point)
    derive.rates_and_lengths(point)
    derive.static_batch(point)
    derive.rates_and_lengths(point)
    for check in judge.MIDDLE:
        check(point)
    settings.apply(point)  # once more: the checks make suggestions of their own
    derive.latencies(point)
    derive.batch(point)
    for check in judge.LAST:
        check(point)
    lacking = needed(point)
    if lacking:
        known = ", ".join(s.split("=")[0] for s in lacking)
        message = f"lacks {known}: give " + " ".join(f"--set {s}" for s in lacking)
        point.say(MISSING, "refused", message)


def _canonical_gpu(point: Point) -> None:
    """The catalogue's name of an accelerator that it knows under another."""
    name = point.shown("gpu")
    if not name or name == UNKNOWN.name:
        return
    try:
        known = get_hardware(name).name
    except ServefitError:
        return
    if known != name:
        source = point.readings["gpu"].source
        point.readings["gpu"] = Reading(known, source, name, "the catalogue's name")


def _known_dtypes(point: Point) -> None:
    """A number format that nobody here knows goes to a column of its own, as it is written."""
    for column in ("dtype", "kv_cache_dtype"):
        name = point.shown(column)
        try:
            if name and name.lower() != "auto":
                canonical_dtype(name)
        except ServefitError:
            point.move(column, f"{column}_as_written")
            point.notes.append(f"{column} {name}: unknown here, left empty")


def _not_understood(document: Document) -> str:
    """One line: what was seen, and what is missing."""
    if document.damage:
        return document.damage
    if document.kind == "text":
        first = next((line.strip() for line in document.head.splitlines() if line.strip()), "")
        return f"is text that no known tool writes; it begins with {first[:50]!r}"
    keys = ", ".join(map(str, list(document.first)[:6])) or "none"
    what = "JSON Lines" if document.kind == "jsonl" else "JSON"
    return (
        f"is {what} of no known tool: keys {keys[:100]}; no known set of latencies and rates "
        "(docs/importing.md lists the formats)"
    )


def _without_name(message: str, name: str) -> str:
    return message.removeprefix(f"{name}: ")
