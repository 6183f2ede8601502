"""Options that `servefit profile` and `servefit tune` share."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.profiling.auto import AutoChooser
    from servefit.profiling.campaign import Options
    from servefit.profiling.session import Target

DEFAULT_KEY_VARIABLE = "SERVEFIT_API_KEY"

_TARGET: tuple[Callable[..., Any], ...] = (
    click.option(
        "--model", help="Which of the server's models to ask; for vllm-offline its folder."
    ),
    click.option("--gpu", help="What the server runs on, by catalogue name (`servefit hardware`)."),
    click.option("--tensor-parallel-size", type=click.IntRange(1), help="GPUs of one replica."),
    click.option(
        "--engine", help="Serving engine, if it cannot be told from /metrics; or vllm-offline."
    ),
    click.option("--engine-version", help="Its version."),
    click.option("--dtype", help="Number format of the weights."),
    click.option("--kv-cache-dtype", help="Number format of the KV cache."),
    click.option("--max-num-seqs", type=click.IntRange(1), help="The server's batch cap: seats."),
    click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Its budget of a step."),
    click.option("--metrics-url", help="Where its metrics are, if not at URL/metrics."),
    click.option(
        "--endpoint",
        type=click.Choice(["auto", "completions", "chat"]),
        default="auto",
        show_default=True,
        help="Which route to use.",
    ),
    click.option(
        "--prompts",
        type=click.Choice(["auto", "token-ids", "text"]),
        default="auto",
        show_default=True,
        help="Prompts as token ids (where the server takes them), or as text, which it tokenizes.",
    ),
    click.option(
        "--api-key-env",
        metavar="NAME",
        default=DEFAULT_KEY_VARIABLE,
        show_default=True,
        help="Environment variable that holds the API key. Keys are taken from nowhere else.",
    ),
    click.option("--insecure", is_flag=True, help="Do not verify the server's TLS certificate."),
    click.option("--ca-file", type=click.Path(), help="Certificates to trust instead."),
    click.option(
        "--launch",
        metavar="COMMAND",
        help="Start the server with this command, {port} and {NAME} of --set filled in; no shell.",
    ),
    click.option(
        "--launch-timeout",
        type=click.FloatRange(1),
        default=900.0,
        show_default=True,
        metavar="SECONDS",
        help="Time that a launched server has to become healthy.",
    ),
)

_RUN: tuple[Callable[..., Any], ...] = (
    click.option(
        "-o",
        "--output",
        default="runs.jsonl",
        show_default=True,
        type=click.Path(),
        help="Campaign file: a table of runs, continued if it exists.",
    ),
    click.option(
        "--precision",
        type=click.FloatRange(0.001, 1),
        default=0.02,
        show_default=True,
        help="A point ends when throughput and E2E are known to this relative error (95 %).",
    ),
    click.option(
        "--min-window",
        type=click.FloatRange(0),
        default=2.0,
        show_default=True,
        metavar="SECONDS",
        help="A point's steady window lasts so long at least, to see slow noise.",
    ),
    click.option(
        "--max-point-time",
        type=click.FloatRange(1),
        default=600.0,
        show_default=True,
        metavar="SECONDS",
        help="A point ends after this at the latest.",
    ),
    click.option(
        "--max-time",
        type=click.FloatRange(1),
        default=3600.0,
        show_default=True,
        metavar="SECONDS",
        help="The campaign ends after this at the latest (and a minute to wind down).",
    ),
    click.option(
        "--stall-time",
        type=click.FloatRange(1),
        default=60.0,
        show_default=True,
        metavar="SECONDS",
        help="No token from any request for so long: the server hangs.",
    ),
    click.option(
        "--retries",
        type=click.IntRange(0, 10),
        default=2,
        show_default=True,
        help="How often a failed point is tried again.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Of lengths and arrivals."),
    click.option("--campaign", default="profile", show_default=True, help="Name in the rows."),
    click.option(
        "--requests-dir",
        type=click.Path(file_okay=False),
        help="Also write every request of each point there, with all its timestamps.",
    ),
)


_AUTO: tuple[Callable[..., Any], ...] = (
    click.option(
        "--law",
        default="step",
        show_default=True,
        help="Which law is fitted to choose points, and to advise.",
    ),
    click.option(
        "--shape",
        metavar="NAME|PATH",
        help="The model's shape for the law, by name or config.json, if the server's name for it "
        "is not in the catalogue; it is written to the rows as their model.",
    ),
    click.option(
        "--auto-precision",
        type=click.FloatRange(0.001, 10),
        default=0.1,
        show_default=True,
        help="No more points are needed when the fit knows every candidate's E2E this well (90 %).",
    ),
)


def auto_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """How points are chosen by what they teach."""
    for option in reversed(_AUTO):
        function = option(function)
    return function


def server_and_run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """All options of this module, for `target_of` and `options_of`."""
    for option in reversed((*_TARGET, *_RUN)):
        function = option(function)
    return function


def refuse_given(names: Sequence[str], why: str) -> None:
    """Raise `ServefitError` for a parameter of these that stands on the command line."""
    context = click.get_current_context()
    for param in context.command.params:
        if param.name not in names:
            continue
        if context.get_parameter_source(param.name) in (
            ParameterSource.COMMANDLINE,
            ParameterSource.ENVIRONMENT,
        ):
            flag = max(param.opts, key=len) if isinstance(param, click.Option) else "URL"
            raise ServefitError(f"{flag} and {why}")


def target_of(url: str | None, given: Mapping[str, Any]) -> Target:
    """Which server the options name; raises `ServefitError` where they name none."""
    from servefit.dtypes import canonical_dtype
    from servefit.hardware import get_hardware
    from servefit.profiling.client import base_url
    from servefit.profiling.server import SETTINGS
    from servefit.profiling.session import Target

    settings = {name: given[name] for name in SETTINGS if given[name] is not None}
    for name in ("dtype", "kv_cache_dtype"):
        if name in settings:
            try:
                settings[name] = canonical_dtype(settings[name])
            except ServefitError as error:
                raise ServefitError(f"{SETTINGS[name]}: {error}") from None
    metrics_url = given["metrics_url"] or "/metrics"
    if not metrics_url.startswith(("/", "http://", "https://")):
        raise ServefitError(
            f"--metrics-url {metrics_url}: give a path from / on, or http://HOST:PORT/metrics"
        )
    if not metrics_url.startswith("/"):
        base_url(metrics_url)  # refuses what is no address, or carries a secret
    if "gpu" in settings:
        get_hardware(settings["gpu"])  # as below
    if given.get("shape") is not None:
        from servefit.models import get_model

        get_model(given["shape"])  # refused now rather than after the first points
        settings["model"] = given["shape"]
    if url is None and given["launch"] is None:
        raise ServefitError("no server: give its URL, or a command that starts it with --launch")
    variable = given["api_key_env"]
    key = os.environ.get(variable)
    key = None if key is None else key.strip()
    if key and not key.isprintable():
        raise ServefitError(f"{variable}: holds a control character, which no API key has")
    if key is None and variable != DEFAULT_KEY_VARIABLE:
        raise ServefitError(f"--api-key-env {variable}: there is no such environment variable")
    if given["insecure"]:
        click.echo("servefit: the server's TLS certificate is not verified (--insecure)", err=True)
    if (given["endpoint"], given["prompts"]) == ("chat", "token-ids"):
        raise ServefitError("--prompts token-ids: the chat route takes text only")
    return Target(
        url=url,
        model=given["model"],
        given=settings,
        metrics_url=metrics_url,
        chat={"auto": None, "chat": True, "completions": False}[given["endpoint"]],
        token_ids={"auto": None, "token-ids": True, "text": False}[given["prompts"]],
        api_key=key or None,
        verify_tls=not given["insecure"],
        ca_file=given["ca_file"],
        launch=given["launch"],
        launch_timeout_s=given["launch_timeout"],
    )


def options_of(given: Mapping[str, Any]) -> Options:
    """How the options run a campaign."""
    from pathlib import Path

    from servefit.profiling.campaign import Options
    from servefit.profiling.measure import Limits

    return Options(
        limits=Limits(
            rel_err=given["precision"],
            max_point_s=given["max_point_time"],
            stall_s=given["stall_time"],
            min_window_s=given["min_window"],
        ),
        max_time_s=given["max_time"],
        retries=given["retries"],
        seed=given["seed"],
        name=given["campaign"],
        requests_dir=Path(given["requests_dir"]) if given["requests_dir"] else None,
    )


def chooser_of(
    given: Mapping[str, Any],
    most: int,
    loads: tuple[Sequence[str], Sequence[str], Sequence[str]],
    target: Target,
    settings: tuple[tuple[str, str], ...],
    say: Callable[[str], None],
) -> AutoChooser:
    """Chooses up to ``most`` points among ``loads``: input lengths, output lengths, batches."""
    from servefit.laws import get_law
    from servefit.profiling.auto import AutoChooser, candidates_for

    get_law(given["law"])  # refused now rather than after the first points
    return AutoChooser(
        candidates=lambda server: candidates_for(server, *loads),
        most=most,
        law=given["law"],
        gpu=target.given.get("gpu"),
        wanted=given["auto_precision"],
        say=say,
        settings=settings,
    )


def items(text: str | None) -> list[str]:
    """The parts of a comma-separated list."""
    return [item.strip() for item in text.split(",") if item.strip()] if text else []


def settings_of(sets: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of the values of ``--set NAME=V,...``."""
    names, values = [], []
    for text in sets:
        name, equals, listed = text.partition("=")
        if not equals or not name.isidentifier() or not items(listed):
            raise ServefitError(f"--set {text}: give NAME=V1,V2")
        if name in names or name == "port":
            why = "it is chosen by servefit" if name == "port" else f"give --set {name}=V1,V2 once"
            raise ServefitError(f"--set {text}: {why}")
        names.append(name)
        values.append(items(listed))
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def one_setting(sets: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The values of ``--set`` where the server is started only once."""
    settings = settings_of(sets)
    if len(settings) != 1:
        raise ServefitError(f"--set {sets[0]}: give one value: the server is started only once")
    return tuple(sorted(settings[0].items()))
