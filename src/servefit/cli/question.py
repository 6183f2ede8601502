"""Options that say what is asked of the advisor; several commands share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from servefit.cli.serving import workload_option

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_QUESTION: tuple[Decorator, ...] = (
    click.option("--model", help="Name in the catalogue, or path of a config.json or its folder."),
    click.option("--input-tokens", type=float, help="Mean prompt length."),
    click.option("--output-tokens", type=float, help="Mean answer length."),
    workload_option,
    click.option(
        "--fit-probability",
        type=float,
        default=0.99,
        show_default=True,
        help="With which the running requests of a --workload must fit the KV cache.",
    ),
    click.option(
        "--slo",
        "slo_texts",
        multiple=True,
        metavar="LATENCY=LIMIT",
        help="Limit on a mean latency: tpot=40ms, ttft=200ms, e2e=2s; or a multiple of the same "
        "curve's at a reference batch: e2e=1.5x@32. Repeat it, or separate by commas.",
    ),
    click.option(
        "--rule",
        type=click.Choice(["efficiency", "tolerance"]),
        default="efficiency",
        show_default=True,
        help="efficiency: most throughput with T(B)/(B T(1)) > epsilon (Eq. 13). tolerance: "
        "smallest batch within a share epsilon of the best feasible throughput.",
    ),
    click.option("--epsilon", type=float, default=0.1, show_default=True, help="Of the rule."),
    click.option(
        "--confidence",
        type=float,
        default=0.9,
        show_default=True,
        help="With which the SLO must hold, one-sided; 0.5 is the point estimate.",
    ),
    click.option(
        "--gpu", metavar="NAME", help="Where it will run; default: where it was measured."
    ),
    click.option("--tensor-parallel-size", type=click.IntRange(min=1), help="GPUs of one replica."),
    click.option("--dtype", help="Number format of the weights; default: the model's own."),
    click.option(
        "--kv-cache-dtype", help="Number format of the KV cache; default: that of weights."
    ),
    click.option(
        "--engine",
        type=click.Choice(["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
        default="vllm",
        show_default=True,
        help="Whose settings to print.",
    ),
    click.option(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        show_default=True,
        help="Share of GPU memory that the engine takes by default (recent vLLM: 0.92).",
    ),
    click.option(
        "--other-memory",
        metavar="SIZE",
        help="Activations, CUDA graphs and runtime on one GPU, as the engine's log says; 2GiB is "
        "assumed where it is not given.",
    ),
    click.option("--rate", type=float, metavar="R", help="Requests per second to serve."),
)


def question_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Model, lengths, SLOs, rule, GPU, formats, engine, memory and rate, under their own names."""
    for option in reversed(_QUESTION):
        function = option(function)
    return function
