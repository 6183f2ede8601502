"""The single figures of a report: what each is called, what it shows, and its chart with data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from servefit.advise import Advice
from servefit.laws import Observations
from servefit.laws.step import StepLaw
from servefit.report import charts
from servefit.report.fit import Goodness, residual_rows
from servefit.report.series import series
from servefit.report.view import View

PANEL = {"width": 400, "height": 250}


@dataclass(frozen=True)
class Figure:
    """A figure of the report.

    Attributes:
        name: of its file.
        text: what it shows, for those who cannot see it.
        chart: an Altair chart, data included.
    """

    name: str
    text: str
    chart: Any


def figures(
    view: View, observations: Observations | None, fit: Goodness | None
) -> dict[str, Figure]:
    """Every figure by name, ``main`` first; which there are depends on what is known."""
    data = series(view, observations)
    found = [Figure("main", view.sentence, main_figure(view, data))]
    for name, metric in charts.METRICS.items():
        if not any(row[metric.column] is not None for row in data["curve"]):
            continue
        text = f"{metric.heading} ({metric.title}) against the batch"
        found.append(Figure(name, text, charts.filled(charts.over_batch(name), data, **PANEL)))
    causes = list(dict.fromkeys(row["cause"] for row in data["steps"]))
    title = steps_title(view.calibration.law)
    chart = charts.filled(charts.steps(title, causes), data, **PANEL)
    found.append(Figure("steps", f"{title} by cause against the batch", chart))
    if data["memory"]:
        bar = charts.memory([row["part"] for row in data["memory"]])
        chart = charts.filled(bar, data, width=PANEL["width"], height=48)
        parts = ", ".join(f"{row['part']} {row['gib']:.3g} GiB" for row in data["memory"])
        found.append(Figure("memory", f"Memory of one GPU: {parts}", chart))
    if fit is not None:
        found += [
            Figure(
                "fit",
                "Predicted against measured throughput",
                charts.filled(charts.predicted_against_measured(), {"fit": fit.rows}, **PANEL),
            ),
            Figure(
                "errors",
                "Error of each prediction against the batch",
                charts.filled(charts.errors_over_batch(), {"fit": fit.rows}, **PANEL),
            ),
        ]
    elif view.calibration.residuals:
        rows = {"residuals": residual_rows(view.calibration)}
        chart = charts.filled(charts.errors_by_row(), rows, **PANEL)
        found.append(Figure("errors", "Error of each training row", chart))
    return {figure.name: figure for figure in found}


def main_figure(view: View, data: Mapping[str, Any]) -> Any:
    """Throughput, and each latency under an SLO, see `shown_latencies`."""
    if isinstance(view.answer, Advice):
        title = f"Batch cap {view.cap} for {place(view)}"
    else:
        title = f"No batch cap for {place(view)}"
    legend = ["line: prediction"]
    if view.problem.curve.confidence is not None:
        legend.append(f"band: {interval_name(view)}")
    if data["measured"]:
        hollow = any(not row["fitted"] for row in data["measured"])
        legend.append("dots: measured" + (", hollow: not in the fit" if hollow else ""))
    return charts.main_figure(data, shown_latencies(view), title, [asked(view), " · ".join(legend)])


def shown_latencies(view: View) -> list[str]:
    """Those under an SLO, the binding or first failing ones before the others.

    Without an SLO TPOT, or E2E where a request has one output token.
    """
    answer, curve = view.answer, view.problem.curve
    names = answer.decision.bounded_by if isinstance(answer, Advice) else (answer.constraint,)
    slos = sorted(view.problem.slos, key=lambda slo: f"SLO {slo}" not in names)
    found = list(dict.fromkeys(slo.latency for slo in slos))
    return found or ["e2e" if np.isnan(curve.latency_s["tpot"]).all() else "tpot"]


def interval_name(view: View) -> str:
    """A bound at one-sided confidence c is an end of the central interval of 2 c - 1."""
    confidence = view.problem.curve.confidence
    return "no interval" if confidence is None else f"{200 * confidence - 100:.10g} % interval"


def place(view: View) -> str:
    """Model, GPU and parallelism."""
    points = view.question.points
    tensor = int(points.tensor_parallel_size)
    stages = 1 if points.serving is None else points.serving.pipeline_parallel_size
    many = f"{tensor * stages} x " if tensor * stages > 1 else ""
    how = f" (TP {tensor}, PP {stages})" if stages > 1 else ""
    return f"{points.models[0].name} on {many}{points.hardware[0].name}{how}"


def asked(view: View) -> str:
    """Lengths and SLOs in a few words."""
    points = view.question.points
    slos = ", ".join(str(slo) for slo in view.problem.slos) or "no SLO"
    lengths = f"{float(points.input_tokens):.4g} input + {float(points.output_tokens):.4g} output"
    return f"{lengths} tokens a request, {slos}"


def steps_title(law: str) -> str:
    """What the decomposition is of."""
    return "one decode step (ms)" if law == StepLaw.name else "E2E of a request (ms)"
