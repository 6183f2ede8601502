"""The report: one self-contained HTML page."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from servefit.advise import Advice
from servefit.advise.curve import LATENCIES
from servefit.advise.decision import Candidate
from servefit.advise.words import memory_sentences, replica_sentences
from servefit.figures import styled
from servefit.laws import Observations
from servefit.report import figures
from servefit.report.asked import asked_rows
from servefit.report.fit import Goodness, goodness, in_fit, parameter_rows
from servefit.report.matching import matching
from servefit.report.source import Source
from servefit.report.view import View
from servefit.units import format_bytes, format_duration, format_rate


def html(view: View, source: Source | None = None, command: str = "") -> str:
    """The page: no request leaves it, every string in it is escaped.

    Args:
        view: a question with its answer.
        source: measured runs.
        command: that asks the same.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = resources.files("servefit.report").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(template).render(**_content(view, source, command))


def _content(view: View, source: Source | None, command: str) -> dict[str, Any]:
    observations = None if source is None else source.observations
    fit = None if observations is None else goodness(view.calibration, observations)
    answer = view.answer
    advised = answer if isinstance(answer, Advice) else None
    pictures = figures.figures(view, observations, fit)
    return {
        "title": f"Batch cap for {figures.place(view)}",
        "sentence": view.sentence,
        "feasible": advised is not None,
        "asked": asked_rows(view, command),
        "interval": figures.interval_name(view),
        "settings": None if advised is None else advised.settings,
        "trades": None if advised is None else _trades(advised),
        "latencies": [name.upper() for name in LATENCIES],
        "sentences": []
        if advised is None
        else [*memory_sentences(advised), *replica_sentences(advised)],
        "warnings": view.warnings,
        "pictures": {
            name: {"uri": data_uri(figure.chart), "text": figure.text}
            for name, figure in pictures.items()
        },
        "why": _why(view),
        "dots": _dots(view, observations),
        "fit": _fit(fit),
        "parameters": [_parameter(row) for row in parameter_rows(view.calibration)],
        "prior": view.calibration.law == "step",
        "facts": _facts(view, source),
        "notes": [*view.calibration.notes, *(() if source is None else source.problems)],
    }


def _dots(view: View, observations: Observations | None) -> str:
    """What the dots are: how many of the runs are drawn, and whether the fit knew them."""
    if observations is None:
        return ""
    found = matching(view, observations)
    hollow = bool((found.drawn & ~in_fit(view.calibration, observations)).any())
    return (
        f"Dots: measured runs. {found.sentence}"
        f"{' Hollow ones were not in the fit.' if hollow else ''}"
    )


def data_uri(chart: Any) -> str:
    """A chart as an image: it needs nothing else, runs no script, and its ids clash with none."""
    import vl_convert as vlc

    svg: str = vlc.vegalite_to_svg(styled(chart).to_dict())
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _trades(advice: Advice) -> list[dict[str, Any]]:
    chosen = advice.decision.chosen
    rows = [_trade(advice, chosen, "", "recommended")]
    for other in advice.decision.alternatives:
        remark = ", ".join(other.breaks) or "allowed"
        rows.append(_trade(advice, other.candidate, f"{other.throughput_change:+.1%}", remark))
    point = advice.point_estimate
    if point is not None and point.batch_cap != chosen.batch_cap:
        change = point.total_tokens_per_s / chosen.total_tokens_per_s - 1
        rows.append(_trade(advice, point, f"{change:+.1%}", "without the margin for uncertainty"))
    return sorted(rows, key=lambda row: int(row["cap"]))


def _trade(advice: Advice, candidate: Candidate, change: str, remark: str) -> dict[str, Any]:
    memory = advice.memory
    needed = None if memory is None else memory.needed_bytes(candidate.batch_cap)
    return {
        "cap": candidate.batch_cap,
        "running": f"{candidate.batch:.4g}",
        "throughput": format_rate(candidate.total_tokens_per_s),
        "efficiency": f"{candidate.efficiency:.2f}",
        "latencies": [
            (format_duration(candidate.latency_s[n]), format_duration(candidate.latency_bound_s[n]))
            for n in LATENCIES
        ],
        "kv": format_bytes(needed),
        "change": change,
        "remark": remark,
    }


def _why(view: View) -> list[str]:
    """What saturates, in sentences, at the recommended cap."""
    if view.why is None or view.cap is None:
        return []
    curve = view.problem.curve
    at = int((curve.cap[view.drawn] == view.cap).argmax())
    why, step_s = view.why, float(view.why.decode_step_s[at])
    shares = sorted(
        ((name, float(s[at]) / step_s) for name, s in why.terms_s.items()), key=lambda x: -x[1]
    )
    parts = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    sentences = [f"At the cap a decode step takes {format_duration(step_s)}: {parts}."]
    bandwidth, flops = float(why.bandwidth_fraction[at]), float(why.flops_fraction[at])
    if bandwidth == bandwidth:
        sentences.append(
            f"It uses {bandwidth:.0%} of the GPU's memory bandwidth and {flops:.0%} of its FLOP/s."
        )
    if view.knee_batch is not None:
        sentences.append(
            f"Beyond the knee, at batch {view.knee_batch:.0f}, reading the KV cache takes longer "
            "than all that the requests share: a further one mostly adds its own time."
        )
    plateau = float(why.plateau_tokens_per_s[at])
    reached = float(curve.total_tokens_per_s[view.drawn][at]) / plateau
    sentences.append(
        f"An endless batch would reach {format_rate(plateau)}; the cap reaches {reached:.0%} of it."
    )
    return sentences


def _fit(fit: Goodness | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    coverage = [
        (f"{100 * c.confidence:g} %", f"{c.count} of {c.of} ({c.count / c.of:.0%})")
        for c in fit.coverage
    ]
    unseen = ""
    if fit.unseen:
        verb = "was" if fit.unseen == 1 else "were"
        unseen = f"{fit.unseen} of these {len(fit.rows)} runs {verb} not in the fit."
    return {
        "rows": len(fit.rows),
        "unseen": unseen,
        "mape": f"{fit.mape_pct:.1f} %",
        "coverage": coverage,
    }


def _parameter(row: dict[str, Any]) -> dict[str, Any]:
    def span(low: float | None, high: float | None) -> str:
        return "-" if low is None or high is None else f"{low:.3g} to {high:.3g}"

    return {
        **row,
        "value": f"{row['value']:.4g}",
        "interval": span(row["low"], row["high"]),
        "allowed": span(*(row["allowed"] or (None, None))),
    }


def _span(low: float, high: float) -> str:
    ends = dict.fromkeys((f"{low:.4g}", f"{high:.4g}"))
    return " to ".join(ends)


def _facts(view: View, source: Source | None) -> list[tuple[str, str]]:
    fit = view.calibration
    errors = {"total_tokens_per_s": "throughput", "e2e_s": "E2E", "step_time_s": "step time"}
    trained = [
        f"{name} {fit.train_mape_pct[key]:.1f} %"
        for key, name in errors.items()
        if fit.train_mape_pct.get(key) is not None
    ]
    rows = [
        ("Law", fit.law),
        ("Fitted on", f"{len(fit.residuals)} rows" if fit.residuals else "no run: priors alone"),
        ("Models seen", ", ".join(m.name for m in fit.models) or "none"),
        ("GPUs seen", ", ".join(h.name for h in fit.hardware) or "none"),
        *((f"Range of {name}", _span(r.low, r.high)) for name, r in fit.ranges.items()),
        ("Error on the training rows (MAPE)", ", ".join(trained) or "unknown"),
        ("Fingerprint of the runs", fit.runs_fingerprint or "none"),
        ("Versions of the fit", ", ".join(f"{k} {v}" for k, v in fit.versions.items()) or "none"),
    ]
    if source is not None:
        rows += source.facts
    rows.append(("Report written", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")))
    return rows
