"""Options that say how a model is served; `servefit predict` and `servefit advise` share them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.workload import Workload

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

WORKLOAD_HELP = (
    "What requests are like, in place of two mean lengths: a CSV trace with the columns "
    "input_tokens and output_tokens, or il=250,ol=390,cv_il=0.8,cv_ol=0.9,corr=0.1 (means, "
    "standard deviations over means, correlation). The batch that runs holds long answers more "
    "often than they arrive."
)

_SCHEDULE: tuple[Decorator, ...] = (
    click.option(
        "--chunked-prefill/--no-chunked-prefill",
        default=None,
        help="Whether prompts share steps with decodes (the default where unknown), or stop them.",
    ),
    click.option(
        "--static",
        is_flag=True,
        default=None,
        help="All requests of the batch start and end at once.",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=click.IntRange(min=1),
        help="Token budget of a step; with chunked prefill it bounds the batch.",
    ),
    click.option(
        "--kv-capacity-tokens",
        type=click.FloatRange(min=1),
        help="Tokens that the KV cache holds, as the engine's log says. Default: what the GPU's "
        "memory leaves.",
    ),
    click.option("--pipeline-parallel-size", type=click.IntRange(min=1), help="Pipeline stages."),
    click.option(
        "--prefix-hit-rate",
        type=click.FloatRange(0, 1),
        help="Share of prompt tokens found in the prefix cache.",
    ),
    click.option(
        "--draft-tokens",
        type=click.IntRange(0, 1000),
        help="Speculative decoding: tokens proposed a step.",
    ),
    click.option(
        "--acceptance-rate",
        type=click.FloatRange(0, 1),
        help="How likely each of them is accepted.",
    ),
    click.option(
        "--draft-cost",
        type=click.FloatRange(min=0),
        help="Time of proposing one of them, in decode steps of the model.",
    ),
)
_NAMES = (
    "chunked_prefill",
    "static",
    "max_num_batched_tokens",
    "kv_capacity_tokens",
    "pipeline_parallel_size",
    "prefix_hit_rate",
    "draft_tokens",
    "acceptance_rate",
    "draft_cost",
)

#: ``--workload``, passed on as its text.
workload_option: Decorator = click.option("--workload", metavar="TRACE|MOMENTS", help=WORKLOAD_HELP)


def schedule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options above; the command gets those that were given as a dictionary ``schedule``.

    Its keys are arguments of `servefit.points.Serving.of`.
    """

    @wraps(function)
    def gather(*arguments: Any, **options: Any) -> Any:
        given = {name: options.pop(name) for name in _NAMES}
        schedule = {name: value for name, value in given.items() if value is not None}
        return function(*arguments, schedule=schedule, **options)

    command: Callable[..., Any] = gather
    for option in reversed(_SCHEDULE):
        command = option(command)
    return command


def given_workload(asked: dict[str, Any]) -> Workload | None:
    """The workload of ``--workload``, in place of mean lengths; takes it out of ``asked``.

    Raises:
        ServefitError: lengths are given twice or not at all, or the workload is none.
    """
    text = asked.pop("workload")
    lengths = asked["input_tokens"], asked["output_tokens"]
    if text is None:
        if None in lengths:
            raise ServefitError(
                "say what requests are like: --input-tokens and --output-tokens, or --workload"
            )
        return None
    if lengths != (None, None):
        raise ServefitError("--workload has its own lengths: leave --input-tokens and the like out")
    from servefit.workload import parse_workload

    return parse_workload(text)
