"""Nsight Systems: ``nsys stats --report cuda_gpu_kern_sum --format csv``, and its sqlite export."""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from servefit.characterise.classify import KernelTable
from servefit.characterise.marks import Mark, read_mark
from servefit.characterise.profile import KernelTime, Metric, Profile, StepTime, merged
from servefit.characterise.readers.csv_table import header_row, number, read_table
from servefit.errors import ServefitError

TOOL = "Nsight Systems"
_TOTAL = re.compile(r"Total Time \((s|sec|ms|msec|us|usec|ns|nsec)\)", re.IGNORECASE)
_UNITS = {"s": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
_KERNELS, _RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


def is_summary(text: str) -> bool:
    """Whether the text holds a kernel summary."""
    return header_row(text, _is_header) is not None


def read_csv(text: str, where: str, table: KernelTable) -> Profile:
    """Time by kernel from a kernel summary, whatever its unit of time.

    Raises:
        ServefitError: cells are missing, a value is no number, or no kernel is in it.
    """
    header, rows = read_table(text, _is_header, where)
    time = next(i for i, cell in enumerate(header) if _TOTAL.fullmatch(cell))
    unit = _TOTAL.fullmatch(header[time])
    factor = _UNITS[unit[1][0].lower()] if unit else 1.0
    calls, name = header.index("Instances"), header.index("Name")
    kernels = []
    for n, row in enumerate(rows, start=1):
        total = number(row[time], f"{where}: row {n}: Total Time")
        count = number(row[calls], f"{where}: row {n}: Instances")
        if total is None or count is None or total < 0 or count < 0:
            raise ServefitError(f"{where}: row {n}: needs a total time and instances of 0 or more")
        kernels.append(KernelTime(row[name], table.classify(row[name]), int(count), total * factor))
    if not kernels:
        raise ServefitError(f"{where}: holds no kernel")
    return Profile(where, f"{TOOL} (kernel summary)", kernels=merged(kernels))


def _is_header(cells: Sequence[str]) -> bool:
    return {"Name", "Instances"} <= set(cells) and any(_TOTAL.fullmatch(c) for c in cells)


def read_sqlite(where: str, table: KernelTable) -> Profile:
    """Time by kernel, copy and marked step from ``nsys export --type sqlite``.

    A kernel belongs to the step whose range (see `servefit.characterise.marks`) holds its launch.

    Raises:
        ServefitError: not such a database, or it holds no GPU work.
    """
    try:
        uri = f"{Path(where).resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            return _Export(database, where).profile(table)
    except (sqlite3.Error, OverflowError, TypeError, UnicodeDecodeError) as error:
        raise ServefitError(
            f"{where}: is no sqlite export of Nsight Systems as expected: {error}"
        ) from None


class _Export:
    """Queries on one export; tables and columns that older versions lack are left out."""

    def __init__(self, database: sqlite3.Connection, where: str) -> None:
        self._database, self._where = database, where
        rows = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self._tables = {row[0] for row in rows}

    def profile(self, table: KernelTable) -> Profile:
        marks = self._marks()
        starts = [start for start, _, _ in marks]

        def step_at(time_ns: int) -> int | None:
            index = bisect_right(starts, time_ns) - 1
            return index if index >= 0 and time_ns < marks[index][1] else None

        kernels = [
            KernelTime(name, table.classify(name), 1, seconds, step_at(launched_ns))
            for name, seconds, launched_ns in (*self._kernels(), *self._copies())
        ]
        metrics = tuple(self._metrics())
        if not kernels and not metrics:
            raise ServefitError(
                f"{self._where}: holds no GPU work: profile with --trace=cuda, and "
                "--cuda-graph-trace=node where CUDA graphs run"
            )
        return Profile(
            self._where,
            TOOL,
            kernels=merged(kernels),
            steps=tuple(
                StepTime(m.phase, (end - start) / 1e9, m.size, m.token) for start, end, m in marks
            ),
            metrics=metrics,
        )

    def _columns(self, table: str) -> set[str]:
        return {row[1] for row in self._database.execute(f"PRAGMA table_info({table})")}

    def _launch_times(self) -> dict[tuple[int, int], int]:
        """When each call was made, by process and correlation id."""
        if _RUNTIME not in self._tables:
            return {}
        process = self._process(_RUNTIME, "globalTid")
        rows = self._database.execute(f"SELECT {process}, correlationId, start FROM {_RUNTIME}")
        return {(pid, correlation): start for pid, correlation, start in rows}

    def _process(self, table: str, column: str) -> str:
        """The process of a row, in SQL: global ids hold the thread in their lowest 24 bits."""
        return f"{column} / 16777216" if column in self._columns(table) else "0"

    def _kernels(self) -> Iterator[tuple[str, float, int]]:
        """Name, seconds, and when it was launched."""
        if _KERNELS not in self._tables:
            return
        name = "demangledName" if "demangledName" in self._columns(_KERNELS) else "shortName"
        launched, process = self._launch_times(), self._process(_KERNELS, "globalPid")
        rows = self._database.execute(
            f"SELECT s.value, k.start, k.end, {process}, k.correlationId FROM {_KERNELS} k "
            f"LEFT JOIN StringIds s ON s.id = k.{name}"
        )
        for text, start, end, *call in rows:
            if start is None or end is None or end < start:
                raise ServefitError(f"{self._where}: a kernel ends before it starts")
            yield str(text or "(no name)"), (end - start) / 1e9, launched.get(tuple(call), start)

    def _copies(self) -> Iterator[tuple[str, float, int]]:
        launched = self._launch_times()
        for table, what in (
            ("CUPTI_ACTIVITY_KIND_MEMCPY", "memcpy"),
            ("CUPTI_ACTIVITY_KIND_MEMSET", "memset"),
        ):
            if table not in self._tables:
                continue
            process = self._process(table, "globalPid")
            kind = "copyKind" if "copyKind" in self._columns(table) else "NULL"
            rows = self._database.execute(
                f"SELECT {kind}, start, end, {process}, correlationId FROM {table}"
            )
            for code, start, end, *call in rows:
                if start is None or end is None or end < start:
                    raise ServefitError(f"{self._where}: a {what} ends before it starts")
                name = f"[CUDA {what} {_COPIES.get(code, '')}".strip() + "]"
                yield name, (end - start) / 1e9, launched.get(tuple(call), start)

    def _marks(self) -> list[tuple[int, int, Mark]]:
        """Start, end and meaning of our ranges, in order."""
        if "NVTX_EVENTS" not in self._tables:
            return []
        columns = self._columns("NVTX_EVENTS")
        texts = "COALESCE(n.text, s.value)" if "textId" in columns else "n.text"
        join = "LEFT JOIN StringIds s ON s.id = n.textId" if "textId" in columns else ""
        rows = self._database.execute(
            f"SELECT n.start, n.end, {texts} FROM NVTX_EVENTS n {join} "
            "WHERE n.end IS NOT NULL ORDER BY n.start"
        )
        found = [(start, end, read_mark(str(text))) for start, end, text in rows]
        return [(start, end, mark) for start, end, mark in found if mark is not None]

    def _metrics(self) -> Iterator[Metric]:
        """Sampled GPU metrics in %, over all samples."""
        if not {"GPU_METRICS", "TARGET_INFO_GPU_METRICS"} <= self._tables:
            return
        rows = self._database.execute(
            "SELECT i.metricName, AVG(m.value), MAX(m.value) FROM GPU_METRICS m "
            "JOIN (SELECT DISTINCT metricId, metricName FROM TARGET_INFO_GPU_METRICS) i "
            "ON i.metricId = m.metricId GROUP BY i.metricName"
        )
        for name, mean, peak in rows:
            if str(name).rstrip().endswith("[Throughput %]") and mean is not None:
                yield Metric(str(name).removesuffix("[Throughput %]").strip(), mean, peak)
