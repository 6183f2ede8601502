"""Measure a plan of points on the embedded engine, row by row, in the schema of a table of runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from servefit.errors import ServefitError
from servefit.hardware import Hardware
from servefit.local.engine import BatchTiming, LocalEngine, local_engine
from servefit.runs.table import SUFFIXES, read_table, table_from_rows, write_table

#: Disturbed repeats are tried again until a point has taken this many times what its repeats need,
#: within these seconds.
PATIENCE = 2
LEAST_SECONDS, MOST_SECONDS = 0.5, 6.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """A static batch to measure.

    Attributes:
        model: path of the model's ``config.json``, as it will stand in the row.
        input_tokens, output_tokens: exact lengths of every request.
        batch: requests, all at once.
    """

    model: str
    input_tokens: int
    output_tokens: int
    batch: int


@dataclass(frozen=True)
class Campaign:
    """A table of runs that grows by one row a point.

    Attributes:
        path: the file (.csv, .jsonl or .parquet).
        rows: what is in it; `measure_missing` adds to it.
        machine: peaks that are written into each row.
        threads: cores to compute on.
        repeats: undisturbed timings wanted of each point.
    """

    path: Path
    rows: list[Row]
    machine: Hardware
    threads: int
    repeats: int

    def missing(self, points: Iterable[Point]) -> list[Point]:
        """The points that no row is of: what is left to do after an interruption."""
        done = {point_of(row) for row in self.rows}
        return [point for point in points if point not in done]

    def measure_missing(self, points: Iterable[Point]) -> Iterator[Row]:
        """Measure what is missing; each row is in the file when it is yielded.

        Raises:
            ServefitError: as `measure` and `save_rows`.
        """
        missing = self.missing(points)
        for row in measure(missing, self.machine, threads=self.threads, repeats=self.repeats):
            self.rows.append(row)
            save_rows(self.rows, self.path)
            yield row


def measure(
    points: Iterable[Point], machine: Hardware, *, threads: int, repeats: int = 3
) -> Iterator[Row]:
    """Measure points and yield a row of each as soon as it is done.

    A point is warmed up once, then repeated. Repeats whose threads had to wait for a core are set
    aside and tried again, within limits. The row holds the repeat with the median E2E of the
    others, and their range. Where fewer than ``repeats`` were left alone, a flag says so. Where
    none was, a single-threaded engine's times are given without the time that it waited, as the
    scheduler counted it; with several threads, whose waits overlap, those of the repeat that
    waited least.

    Args:
        points: what to measure; those of one model that follow each other share a loaded engine.
        machine: peaks that are written into each row.
        threads: cores to compute on.
        repeats: undisturbed timings wanted of each point.

    Raises:
        ServefitError: as `servefit.local.engine`.
    """
    for model, same in groupby(points, key=lambda point: point.model):
        with local_engine(Path(model), threads=threads) as engine:
            for point in same:
                yield _row(point, engine, machine, _repeat(engine, point, repeats), repeats)


def save_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write all rows at once or not at all: a kill leaves the file as it was before.

    Raises:
        ServefitError: the suffix names no format, or the file cannot be written.
    """
    partial = path.with_name(f".partial-{path.name}")
    write_table(table_from_rows(rows, str(path)), partial)
    os.replace(partial, path)


def load_rows(path: Path) -> list[Row]:
    """The rows of an earlier campaign; none if there is no such file.

    Raises:
        ServefitError: no table can be written there, it is none, or one of its rows cannot be read.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ServefitError(f"{path}: no table format has this suffix: use {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ServefitError(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return []
    table = read_table(path)
    if table.refused:
        problem = table.refused[0]
        raise ServefitError(
            f"{path}: row {problem.row}: {problem.column} = {problem.value} {problem.reason}: "
            "correct it or write to another file"
        )
    return table.frame.drop("row", "file").to_dicts()


def point_of(row: Mapping[str, Any]) -> Point:
    """The point that a row is of."""
    lengths = (row.get(name) for name in ("input_tokens", "output_tokens", "batch"))
    return Point(str(row.get("model")), *(int(value or 0) for value in lengths))


def _repeat(engine: LocalEngine, point: Point, repeats: int) -> list[BatchTiming]:
    sizes = {"batch": point.batch, "input_tokens": point.input_tokens}
    # Prefill and one decode step touch all the memory that the point needs.
    engine.run(**sizes, output_tokens=min(point.output_tokens, 2))
    timings: list[BatchTiming] = []
    start_s = time.perf_counter()
    while True:
        timings.append(engine.run(**sizes, output_tokens=point.output_tokens, seed=len(timings)))
        alone = sum(t.undisturbed for t in timings)
        needed_s = PATIENCE * repeats * min(t.e2e_s for t in timings)
        patience_s = min(max(needed_s, LEAST_SECONDS), MOST_SECONDS)
        tired = len(timings) >= repeats and time.perf_counter() - start_s > patience_s
        if alone >= repeats or tired:
            return timings


def _usable(timings: Sequence[BatchTiming], threads: int) -> list[BatchTiming]:
    """The timings that the row is made of, fastest first."""
    used = [t for t in timings if t.undisturbed]
    if not used and threads == 1:
        used = [t.without_waits() for t in timings]
    elif not used:
        used = [min(timings, key=lambda t: t.waited_share)]
    return sorted(used, key=lambda t: t.e2e_s)


def _row(
    point: Point,
    engine: LocalEngine,
    machine: Hardware,
    timings: Sequence[BatchTiming],
    repeats: int,
) -> Row:
    used = _usable(timings, engine.threads)
    median = used[(len(used) - 1) // 2]
    alone = sum(t.undisturbed for t in timings)
    e2e_s, answers = median.e2e_s, point.batch * point.output_tokens
    flag = None
    if alone < repeats:
        flag = f"disturbed: {alone} of {len(timings)} timings had their cores to themselves"
        if alone == 0 and median not in timings:
            flag += "; the time waited for a core is taken out"
    return {
        "mode": "static_batch",
        "model": point.model,
        "gpu": machine.name,
        "tensor_parallel_size": 1,
        "engine": "ctranslate2",
        "engine_version": engine.version,
        "dtype": "float32",
        "kv_cache_dtype": "float32",
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "batch": point.batch,
        "num_requests": point.batch,
        "completed": point.batch,
        "duration_s": e2e_s,
        "requests_per_s": point.batch / e2e_s,
        "total_tokens_per_s": (point.batch * point.input_tokens + answers) / e2e_s,
        "output_tokens_per_s": answers / e2e_s,
        "e2e_mean_s": e2e_s,
        "ttft_mean_s": median.ttft_s,
        "tpot_mean_s": (e2e_s - median.ttft_s) / (point.output_tokens - 1)
        if point.output_tokens > 1
        else None,
        "peak_flops_per_s": machine.peak_flops("float32"),
        "memory_bandwidth_bytes_per_s": machine.memory_bandwidth_bytes_per_s,
        "memory_bytes": machine.memory_bytes,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "source_file": "servefit.local",
        "flags": flag,
        "threads": engine.threads,
        "repeats": len(used),
        "e2e_range_rel": (used[-1].e2e_s - used[0].e2e_s) / e2e_s,
        "disturbed_repeats": len(timings) - alone,
        "waited_share": fmean(t.waited_share for t in timings),
    }
