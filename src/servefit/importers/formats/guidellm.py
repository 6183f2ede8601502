"""GuideLLM reports, of each schema since 0.2: a point a benchmark."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.importers import serving
from servefit.importers.document import Document, Record
from servefit.importers.fields import Fields, dig, mapping, sequence, to_number, to_text
from servefit.importers.point import Point

NAME = "GuideLLM"

#: A limit of workers, not a load: what `max_concurrency` holds where none was asked for.
NO_LIMIT = 1024

#: Rates of one benchmark that count the same answers differ by rounding only.
TOLERANCE = 0.05

_MODEL_PATHS = (
    ("config", "backend", "model"),
    ("config", "spec", "backend", "model"),
    ("worker", "backend_model"),
    ("benchmarker", "backend", "model"),
    ("args", "backend", "model"),
    ("args", "model"),
)


def recognise(document: Document) -> bool:
    """A list of benchmarks whose metrics are split by how requests ended."""
    return bool(_benchmarks(document.first)) or _is_benchmark(document.first)


def _benchmarks(record: Record) -> list[Record]:
    found = [mapping(b) for b in sequence(record.get("benchmarks"))]
    return [b for b in found if _is_benchmark(b)]


def _is_benchmark(record: Record) -> bool:
    metrics = mapping(record.get("metrics"))
    return any(
        "successful" in mapping(metrics.get(k)) for k in ("request_latency", "requests_per_second")
    )


def read(document: Document) -> Iterator[Point]:
    """Only successful requests; ``time_per_output_token`` differs by version: not used."""
    for where, record in document.records():
        single = [record] if _is_benchmark(record) else []
        for i, benchmark in enumerate(_benchmarks(record) or single):
            place = f"{where}benchmarks[{i}]" if "benchmarks" in record else where
            yield _point(benchmark, record, document.name, place)


def _point(benchmark: Record, report: Record, file: str, where: str) -> Point:
    point = serving.new_point(NAME, file, where)
    _model(point, benchmark, report)
    version = to_text(dig(report, "metadata", "guidellm_version"))
    point.notes.append(f"GuideLLM {version or 'of unknown version'}")
    _load(point, benchmark)
    metrics = Fields(mapping(benchmark.get("metrics")), point, "metrics.")

    def good(key: str) -> Fields:
        return metrics.below(key).below("successful")

    good("prompt_token_count").take("input_tokens", "mean")
    good("output_token_count").take("output_tokens", "mean")
    good("requests_per_second").take("requests_per_s", "mean")
    good("request_concurrency").take("measured_concurrency", "mean")
    good("request_latency").take("e2e_mean_s", "mean")
    good("request_latency").take("e2e_median_s", "median")
    good("request_latency").below("percentiles").take("e2e_p99_s", "p99")
    for latency, key in (("ttft", "time_to_first_token_ms"), ("itl", "inter_token_latency_ms")):
        block = good(key)
        block.take(f"{latency}_mean_s", "mean", divisor=1e3)
        block.take(f"{latency}_median_s", "median", divisor=1e3)
        block.below("percentiles").take(f"{latency}_p99_s", "p99", divisor=1e3)
    point.notes.append("time_per_output_token_ms is E2E / output tokens and holds TTFT: not used")
    _token_rates(point, good("output_tokens_per_second"), good("tokens_per_second"))
    return point


def _token_rates(point: Point, output: Fields, total: Fields) -> None:
    """Token rates; where they are not requests/s x tokens, the latter is taken.

    They are means over windows between tokens, which some versions do not weight by time.
    """
    requests, lengths = point.number("requests_per_s"), point.number("output_tokens")
    reported = output.number("mean")
    if requests and lengths and reported:
        implied = requests * lengths
        message = f"output {reported:.4g} tokens/s, requests/s x output tokens = {implied:.4g}"
        if abs(reported / implied - 1) > TOLERANCE:
            reason = f"{message}: the tool's is not weighted by time; the product is taken"
            point.say("token rates", "corrected", reason)
            return
        point.say("token rates", "agrees", message)
    output.take("output_tokens_per_s", "mean")
    median = output.number("median")
    if reported and median and reported > 2 * median:
        point.notes.append(f"median rate {median:.4g} tokens/s is of gaps between tokens: not used")
    rates = point.numbers("requests_per_s", "input_tokens", "output_tokens")
    both = total.number("mean")
    if rates and both and abs(both / (rates[0] * (rates[1] + rates[2])) - 1) <= TOLERANCE:
        total.take("total_tokens_per_s", "mean")


def _load(point: Point, benchmark: Record) -> None:
    strategy = mapping(
        dig(benchmark, "config", "strategy")
        or dig(benchmark, "args", "strategy")
        or dig(benchmark, "scheduler", "strategy")
    )
    at = "config.strategy." if dig(benchmark, "config", "strategy") else "args.strategy."
    fields = Fields(strategy, point, at)
    kind = fields.text("type_", "kind", "type") or ""
    point.put("load", kind or None, f"{at}type_", kind)
    if kind == "synchronous":
        point.put("concurrency", 1, f"{at}type_", kind)
    elif kind == "concurrent":
        fields.take("concurrency", "streams", "max_concurrency")
    elif kind == "throughput":
        limit = fields.number("max_concurrency")
        if limit and limit < NO_LIMIT:
            fields.take("concurrency", "max_concurrency")
        else:
            point.put("_all_at_once", True, f"{at}type_", kind)
    else:
        fields.take("request_rate_per_s", "rate")
        point.notes.append("max_concurrency of a rate is a limit of workers: no client's load")
    totals = mapping(
        dig(benchmark, "metrics", "request_totals")
        or benchmark.get("request_totals")
        or dig(benchmark, "run_stats", "requests_made")
    )
    counts = Fields(totals, point, "request_totals.")
    counts.take("completed", "successful")
    counts.take("failed_requests", "errored")
    open_at_end = to_number(totals.get("incomplete"))
    if open_at_end:
        point.notes.append(f"{open_at_end:.0f} requests were cut off by the end of the run")
    Fields(benchmark, point).take("duration_s", "duration")


def _model(point: Point, benchmark: Record, report: Record) -> None:
    for record in (benchmark, report):
        for path in _MODEL_PATHS:
            text = to_text(dig(record, *path))
            if text:
                name, how = serving.model_name(text)
                point.put("model", name, ".".join(path), text, how)
    if "mock" in str(point.shown("model")).lower():
        point.say("server", "flagged", f"model {point.shown('model')}: a mock server's latencies")
