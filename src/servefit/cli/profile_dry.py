"""``servefit profile --dry-run``: the server and the points, and nothing measured."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from servefit.cli import common
from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.profiling.plan import Point
    from servefit.profiling.server import Server
    from servefit.profiling.session import Settings, Target


def look(
    target: Target,
    settings: Settings,
    max_time_s: float,
    points_for: Callable[[Server], Sequence[Point]],
) -> dict[str, Any]:
    """Find out about the server, launched with ``settings`` if it is to be; see `as_json`.

    Raises:
        ServefitError: the server is not there, does not start, or is refused by ``points_for``.
    """
    from servefit.cli.profile_run import run_loop
    from servefit.profiling.launch import LaunchFailedError
    from servefit.profiling.patience import OutOfTimeError

    # Of its own, so that it meets no campaign here; what a failed launch said stays to be read.
    folder = Path(tempfile.mkdtemp(prefix="servefit-dry-run-"))
    try:
        server = run_loop(_discovered(target, settings, folder / "server", max_time_s))
        shutil.rmtree(folder)
    except LaunchFailedError as failure:
        raise ServefitError(f"--launch: {failure}") from None
    except (OutOfTimeError, TimeoutError):
        raise ServefitError("the server is not ready within --max-time") from None
    finally:
        with suppress(OSError):  # it holds the log, or is gone
            folder.rmdir()
    points = points_for(server)
    show(points)
    return as_json(asdict(server), points)


async def _discovered(target: Target, settings: Settings, stem: Path, max_time_s: float) -> Server:
    from servefit.cli.profile_display import ConsoleDisplay
    from servefit.profiling.session import open_session

    display = ConsoleDisplay(common.console(stderr=True))
    give_up_s = time.perf_counter() + max_time_s
    async with (
        asyncio.timeout(max_time_s),
        open_session(
            target, settings, stem=stem, give_up_s=give_up_s, report=display.say
        ) as session,
    ):
        display.server(session.server)
        return session.server


def show(points: Sequence[Point]) -> None:
    """The points for people, on standard error."""
    for point in points:
        click.echo(point.label, err=True)


def as_json(server: Mapping[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    """What a dry run tells to machines."""
    listed = [{"label": p.label, **asdict(p), "settings": dict(p.settings)} for p in points]
    return {"server": server, "points": listed}
