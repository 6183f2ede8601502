"""Files of known tools that hold no run: named, so that nobody wonders."""

from __future__ import annotations

from collections.abc import Iterator

from servefit.errors import ServefitError
from servefit.importers.document import Document
from servefit.importers.fields import mapping, normal
from servefit.importers.point import Point
from servefit.importers.tables import csv_header

NAME = "a known file that holds no run"


def recognise(document: Document) -> bool:
    """Model configs, kernel profiles, failure records, per-request tables without times."""
    return _what(document) is not None


def read(document: Document) -> Iterator[Point]:
    """None: raises with what it is and where to go with it."""
    raise ServefitError(_what(document) or NAME)
    yield  # pragma: no cover


def _what(document: Document) -> str | None:
    first = document.first
    if "architectures" in first or ("model_type" in first and "hidden_size" in first):
        return "is a HuggingFace model config: no run; `servefit models` reads it"
    if "error_type" in first and "error" in first and "serve_overrides" in first:
        return f"is a failed benchmark of a vLLM sweep: {str(first['error'])[:100]}"
    if "aggregation_type" in mapping(first.get("metadata")):
        return "is an AIPerf aggregate that repeats its own runs: import each run's export"
    if {"error_code", "ttft_s", "number_input_tokens"} <= set(first):
        return "are llmperf's single requests, without start times: import its *_summary.json"
    if {"experiments", "service_kind"} <= set(first):
        return "are GenAI-Perf's raw responses: import its profile_export_genai_perf.json or .csv"
    header = {normal(h) for h in csv_header(document)}
    columns = header or {normal(key) for key in first}
    if "schema_version" in columns and {"model", "input_tokens"} <= columns:
        return "is a table of runs already: `servefit check` and `servefit fit` read it"
    if {"kernel_name", "metric_name", "metric_unit", "metric_value"} <= header:
        return "is a kernel table of Nsight Compute: no run; `servefit characterise` reads it"
    if {"time", "total_time_ns", "instances", "name"} <= header:
        return "is a kernel summary of Nsight Systems: no run; `servefit characterise` reads it"
    if {"servefit_version", "law"} <= set(mapping(first)):
        return "is a calibration of servefit: no run"
    return None
