"""``servefit profile --engine vllm-offline``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.cli.profile_options import refuse_given
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.offline.campaign import OfflineTarget
    from servefit.profiling.campaign import Options
    from servefit.profiling.plan import Point

#: The word for `--engine`.
VLLM_OFFLINE = "vllm-offline"
#: Options that set an argument of vLLM's engine -> its name.
ARGUMENTS: Mapping[str, str] = {
    "dtype": "dtype",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tensor_parallel_size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
}
#: Options that only a live server has a use for.
SERVER_ONLY = (
    *("launch", "launch_timeout", "metrics_url", "engine_version", "endpoint", "prompts"),
    *("api_key_env", "insecure", "ca_file", "requests_dir", "stall_time", "retries", "shape"),
)


def profile_offline(
    points: Sequence[Point],
    options: Options,
    output: str,
    given: Mapping[str, Any],
) -> tuple[list[dict[str, Any]], bool]:
    """Run the points in process; the rows added to ``output``, and whether the time was up.

    Raises:
        ServefitError: an option that makes no sense here, or as `OfflineCampaign.run`.
    """
    from servefit.cli.profile_display import ConsoleDisplay
    from servefit.cli.profile_run import say_if_late
    from servefit.offline.campaign import OfflineCampaign
    from servefit.profiling.journal import Journal

    target = _target(given)
    display = ConsoleDisplay(common.console(stderr=True))
    with Journal(output) as journal, display.live():
        campaign = OfflineCampaign(target, journal, options, display)
        rows = campaign.run(points)
    return rows, say_if_late(campaign)


def look_offline(points: Sequence[Point], given: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's arguments and the points, without running them; see `profile_dry.as_json`."""
    from servefit.cli.profile_dry import as_json, show

    arguments = _target(given).engine_arguments(points)
    for name, value in arguments.items():
        click.echo(f"{name} = {value}", err=True)
    show(points)
    return as_json({"engine": VLLM_OFFLINE, "arguments": arguments}, points)


def _target(given: Mapping[str, Any]) -> OfflineTarget:
    """What to run; raises `ServefitError` for an option that makes no sense here."""
    from servefit.offline.campaign import OfflineTarget

    refuse_given(("url", *SERVER_ONLY), f"--engine {VLLM_OFFLINE}: that runs without a server")
    if given["model"] is None:
        raise ServefitError(f"--engine {VLLM_OFFLINE}: needs --model, the folder of a config.json")
    return OfflineTarget(
        model=given["model"],
        gpu=given["gpu"],
        arguments={v: given[k] for k, v in ARGUMENTS.items() if given[k] is not None},
    )
