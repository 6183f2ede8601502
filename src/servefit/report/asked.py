"""What was asked, line by line: enough to ask it again."""

from __future__ import annotations

import numpy as np

from servefit.memory import ASSUMED_OTHER_BYTES
from servefit.points import Serving
from servefit.report.view import Question, View
from servefit.units import exact, format_bytes, format_confidence

Row = tuple[str, str]


def asked_rows(view: View, command: str = "") -> list[Row]:
    """Name and value of all that the answer depends on; what is unset and has no effect is not.

    Args:
        view: the question and its answer.
        command: that asks the same.
    """
    question = view.question
    points, model = question.points, question.points.models[0]
    rows = [
        ("Command", command),
        ("Model", model.name),
        ("GPU", points.hardware[0].name),
        ("Tensor parallelism", f"{int(points.tensor_parallel_size)}"),
        ("Weights", model.weight_dtype),
        ("KV cache", model.kv_cache_dtype),
        *_lengths(question),
        ("SLO", ", ".join(_slos(view)) or "none"),
        ("Confidence of the SLO", format_confidence(question.confidence)),
        ("Rule", f"{question.rule}, epsilon {exact(question.epsilon)}"),
        *_serving(question),
        *_memory(view),
    ]
    if question.rate_per_s is not None:
        rows.append(("Request rate", f"{exact(question.rate_per_s)} requests/s"))
    return [(name, value) for name, value in rows if value]


def _lengths(question: Question) -> list[Row]:
    points, workload = question.points, question.workload
    lengths = {"Input tokens": points.input_tokens, "Output tokens": points.output_tokens}
    if workload is None:
        return [(name, exact(float(value))) for name, value in lengths.items()]
    context = f"{workload.mean_context_tokens:.5g} tokens on average"
    return [
        ("Lengths", workload.source),
        *((name, f"{float(value):.6g} on average") for name, value in lengths.items()),
        (
            "Context of a running request",
            f"{context}, standard deviation {workload.context_sd_tokens:.5g}",
        ),
    ]


def _slos(view: View) -> list[str]:
    return [f"{slo} ({slo.origin})" if slo.origin else str(slo) for slo in view.problem.slos]


def _serving(question: Question) -> list[Row]:
    serving, terms = question.points.serving or Serving(), question.terms
    rows = [("Engine", terms.engine.name)]
    if terms.candidates is not None:
        caps = np.asarray(terms.candidates)
        every = ", ".join(str(cap) for cap in caps.tolist())
        some = f"{caps.size:,} of those up to {caps.max():,}"
        rows.append(("Candidates", every if caps.size <= 40 else some))
    if serving.pipeline_parallel_size > 1:
        rows.append(("Pipeline stages", str(serving.pipeline_parallel_size)))
    if serving.static.any():
        rows.append(("Batches", "static: all requests start and end at once"))
    elif not np.isnan(serving.chunked_prefill):
        rows.append(("Prompts", "chunked" if serving.chunked_prefill else "not chunked"))
    if terms.max_num_batched_tokens is not None:
        rows.append(("Token budget of a step", f"{terms.max_num_batched_tokens:g}"))
    if serving.prefix_hit_rate:
        rows.append(("Prefix hit rate", exact(serving.prefix_hit_rate)))
    if serving.draft_tokens:
        cost = f", each at {exact(serving.draft_cost)} steps" if serving.draft_cost else ""
        accepted = f"{exact(serving.acceptance_rate)} accepted"
        rows.append(("Draft tokens", f"{serving.draft_tokens}, {accepted}{cost}"))
    return rows


def _memory(view: View) -> list[Row]:
    question, memory = view.question, view.problem.deployment.memory
    terms, other = question.terms, ""
    if terms.other_bytes is not None:
        other = format_bytes(terms.other_bytes)
    elif memory is not None and memory.other_is_assumed:
        other = f"{format_bytes(ASSUMED_OTHER_BYTES)}, assumed"
    rows = [
        ("GPU memory utilisation", exact(terms.gpu_memory_utilization)),
        ("Other memory", other),
    ]
    if terms.kv_capacity_tokens is not None:
        rows.append(("KV capacity", f"{exact(terms.kv_capacity_tokens)} tokens"))
    if question.workload is not None:
        rows.append(("Requests fit with probability", exact(terms.fit_probability)))
    return rows
