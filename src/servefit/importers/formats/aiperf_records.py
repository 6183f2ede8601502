"""AIPerf's ``profile_export.jsonl``: a record a request, streamed into one point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import dig, mapping, to_number
from servefit.importers.formats.aiperf import TIME_UNITS
from servefit.importers.point import Point

NAME = "AIPerf request records"

#: Column -> names of the metric, the long one first.
_TIMES = {
    "ttft": ("time_to_first_token", "ttft"),
    "e2e": ("request_latency",),
    "tpot": ("inter_token_latency",),
}
_LENGTHS = {
    "input_tokens": ("input_sequence_length", "isl"),
    "output_tokens": ("output_sequence_length", "osl"),
}


def recognise(document: Document) -> bool:
    """Records of metadata with times, and metrics with units."""
    first, metadata = document.first, mapping(document.first.get("metadata"))
    return isinstance(first.get("metrics"), dict) and not {
        "request_start_ns",
        "timestamp_ns",
    }.isdisjoint(metadata)


@dataclass
class _Sums:
    """Running sums over requests; a 200 MB file takes no more memory than a small one."""

    count: int = 0
    failed: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)
    start_ns: float | None = None
    end_ns: float | None = None

    def add(self, record: Record) -> None:
        """One request."""
        metadata, metrics = mapping(record.get("metadata")), mapping(record.get("metrics"))
        phase = str(metadata.get("benchmark_phase") or metadata.get("credit_phase") or "profiling")
        if phase != "profiling":
            self.left_out[phase[:20]] += 1
            return
        if metadata.get("was_cancelled") is True or record.get("error"):
            self.failed += 1
            return
        self.count += 1
        self._window(metadata, metrics)
        for column, names in (*_TIMES.items(), *_LENGTHS.items()):
            name = next((n for n in names if n in metrics), names[0])
            value = to_number(dig(metrics, name, "value"))
            if value is not None and value >= 0:
                unit = str(dig(metrics, name, "unit") or "ms").lower()
                divisor = TIME_UNITS.get(unit, 1e3) if column in _TIMES else 1.0
                self.total[column] += value / divisor  # type: ignore[assignment]
                self.seen[column] += 1

    def _window(self, metadata: Record, metrics: Record) -> None:
        """First start and last end, from the metadata or from metrics of the first versions."""
        start = to_number(metadata.get("request_start_ns"))
        end = to_number(metadata.get("request_end_ns"))
        if start is None:
            start = to_number(dig(metrics, "min_request_timestamp", "value"))
        if end is None:
            end = to_number(dig(metrics, "max_response_timestamp", "value"))
        if start is not None and end is not None:
            self.start_ns = start if self.start_ns is None else min(self.start_ns, start)
            self.end_ns = end if self.end_ns is None else max(self.end_ns, end)


def read(document: Document) -> Iterator[Point]:
    """Means over the requests that succeeded in the measured phase."""
    sums = _Sums()
    for _, record in document.records():
        sums.add(record)
    point = serving.new_point(NAME, document.name, "")
    if sums.count == 0:
        point.say("completion", "refused", "no request of the measured phase succeeded")
    point.put("completed", sums.count, "records", "", "successful, of the measured phase")
    point.put("failed_requests", sums.failed, "records", "", "failed or cancelled")
    for column in (*_TIMES, *_LENGTHS):
        if sums.seen[column]:
            name = f"{column}_mean_s" if column in _TIMES else column
            how = f"mean of {sums.seen[column]} requests"
            key = (_TIMES | _LENGTHS)[column][0]
            point.put(name, sums.total[column] / sums.seen[column], key, "", how)
    if sums.start_ns is not None and sums.end_ns is not None and sums.end_ns > sums.start_ns:
        how = "last end - first start"
        point.put("duration_s", (sums.end_ns - sums.start_ns) / 1e9, "request times", "", how)
    for phase, count in sums.left_out.items():
        point.say("warm-up", "corrected", f"{count} requests of phase {phase} are left out")
    yield point
