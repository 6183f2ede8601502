"""Running the event loop of a campaign."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from servefit.errors import ServefitError

T = TypeVar("T")


def require_extra() -> None:
    """Raise `ServefitError` where the extra that profiling needs is not installed."""
    missing = [name for name in ("aiohttp", "yaml") if importlib.util.find_spec(name) is None]
    if missing:
        raise ServefitError(
            f"profiling needs {', '.join(missing)}: install it with `pip install "
            "'servefit[profile]'`"
        )


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
