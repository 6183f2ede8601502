"""Running the event loop of a campaign."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from servefit.errors import ServefitError

if TYPE_CHECKING:
    from servefit.profiling.plan import Point

T = TypeVar("T")
#: Points that are named where they are missing; what is more is counted.
MOST_NAMED = 6


def require_extra() -> None:
    """Raise `ServefitError` where the extra that profiling needs is not installed."""
    missing = [name for name in ("aiohttp", "yaml") if importlib.util.find_spec(name) is None]
    if missing:
        raise ServefitError(
            f"profiling needs {', '.join(missing)}: install it with `pip install "
            "'servefit[profile]'`"
        )


class Ending(Protocol):
    """How a campaign ended."""

    @property
    def out_of_time(self) -> bool:
        """Whether its time was up before it was through."""

    @property
    def missing(self) -> Sequence[Point]:
        """Points that were then left for the next run, as far as they were named."""


def say_if_late(campaign: Ending, *, then: str = "") -> bool:
    """Whether a campaign has not come to its end; says so, and what is missing."""
    if not campaign.out_of_time:
        return False
    click.echo("servefit: --max-time is up: the same command again continues", err=True)
    for point in campaign.missing[:MOST_NAMED]:
        click.echo(f"  missing: {point.label}{then}", err=True)
    if more := len(campaign.missing[MOST_NAMED:]):
        click.echo(f"  missing: {more} more", err=True)
    return True


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work``; Ctrl-C and SIGTERM end it in order, so that launched servers are stopped.

    uvloop, where it is there, halves the client's CPU time a chunk. What exists is kept out of
    garbage collections, whose pauses would delay timestamps.
    """
    from servefit.profiling.load import raise_file_limit

    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factory = uvloop.new_event_loop
    raise_file_limit()
    gc.collect()
    gc.freeze()

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(until_terminated())
        except asyncio.CancelledError:
            raise click.Abort from None
        finally:
            gc.unfreeze()
