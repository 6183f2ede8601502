"""A session with one server: connected or launched, discovered and probed."""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servefit.dtypes import canonical_dtype
from servefit.errors import ServefitError
from servefit.profiling.client import Client, base_url
from servefit.profiling.discover import discover
from servefit.profiling.launch import (
    LaunchedServer,
    LaunchFailedError,
    clean_up,
    fill,
    free_port,
    placeholders,
)
from servefit.profiling.patience import Patience
from servefit.profiling.probe import make_prompts, probe
from servefit.profiling.prompts import Prompts
from servefit.profiling.server import SETTINGS, Server

Settings = tuple[tuple[str, str], ...]
#: Characters of a log's name that tell the settings.
MAX_LABEL = 100


@dataclass(frozen=True)
class Target:
    """Which server to measure, and what the user tells of it.

    Attributes:
        url: its address; ``None`` where a launched server listens on a port of our choice.
        model: its name to the server, if there are several.
        given: settings of the row that the server does not tell.
        metrics_url: see `discover`.
        chat, token_ids: see `probe`.
        api_key, verify_tls, ca_file: see `Client`.
        launch: command that starts the server, with ``{name}`` for settings and ``{port}``.
        launch_timeout_s: time that it has to become healthy.
    """

    url: str | None = None
    model: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    metrics_url: str = "/metrics"
    chat: bool | None = None
    token_ids: bool | None = None
    api_key: str | None = field(default=None, repr=False)
    verify_tls: bool = True
    ca_file: str | None = None
    launch: str | None = None
    launch_timeout_s: float = 900.0

    def row_settings(self, settings: Settings) -> dict[str, Any]:
        """What is known of a server before it is asked: ``given``, and what it is launched with."""
        launched: dict[str, Any] = {k: v for k, v in settings if k in SETTINGS}
        for name, value in launched.items():
            if name in ("dtype", "kv_cache_dtype"):
                launched[name] = _dtype(name, value)
            elif value.isdecimal():
                launched[name] = int(value)
        return {**self.given, **launched}

    def refuse_unused(self, settings: Settings) -> None:
        """Raise `ServefitError` for a setting that no server would be started with.

        So too for one that a row cannot have.
        """
        self.row_settings(settings)
        names = placeholders(self.launch) if self.launch is not None else set()
        for name, value in settings:
            if self.launch is None:
                raise ServefitError(
                    f"--set {name}={value}: only a server started by --launch is set"
                )
            if name not in names:
                raise ServefitError(
                    f"--set {name}={value}: --launch has no {{{name}}} to put it in"
                )

    def identity(self, server: Server | None = None) -> str:
        """Who answers, for the identity of points: address or launch command, model, settings.

        A launched server has its identity before it runs, so that a campaign can tell what is
        missing; a connected ``server`` also tells settings by itself, which a restart may change.
        """
        url = base_url(self.url) if self.url else None
        known = self.given
        model = self.model
        if self.launch is None and server is not None:
            known, model = server.settings, server.model
        names = (*SETTINGS, "data_parallel_size", "model")
        told = {name: known[name] for name in names if known.get(name) is not None}
        asked = {"chat": self.chat, "token_ids": self.token_ids}
        told |= {name: value for name, value in asked.items() if value is not None}
        return json.dumps([self.launch, url, model, told], sort_keys=True, default=str)

    def client(self, url: str) -> Client:
        """Connections to the server at ``url``."""
        return Client(url, api_key=self.api_key, verify_tls=self.verify_tls, ca_file=self.ca_file)


@dataclass
class Session:
    """One server under measurement; ``alive`` says whether a launched one still runs."""

    client: Client
    server: Server
    prompts: Prompts
    alive: Callable[[], bool] = lambda: True


def open_session(
    target: Target,
    settings: Settings,
    *,
    stem: Path,
    give_up_s: float,
    report: Callable[[str], None],
) -> AbstractAsyncContextManager[Session]:
    """A session with the target, launched with ``settings`` if it is to be launched.

    Args:
        target: which server.
        settings: values for the launch command.
        stem: the launched server's log and pid file go beside it, with more after its name.
        give_up_s: when to wait no longer, by ``time.perf_counter``.
        report: told what is being waited for.

    Raises:
        ServefitError: see `discover`, `probe` and `fill`.
        LaunchFailedError: the launched server does not start, or ends at the first questions.
        OutOfTimeError: ``give_up_s`` came before the server was ready.
    """
    target.refuse_unused(settings)
    if target.launch is not None:
        return _launched(target, target.launch, settings, stem, give_up_s, report)
    if target.url is None:
        raise ServefitError("no server: give its URL, or a command with --launch")
    return _connected(target, target.url, settings, give_up_s, report)


@asynccontextmanager
async def _connected(
    target: Target,
    url: str,
    settings: Settings,
    give_up_s: float,
    report: Callable[[str], None],
    alive: Callable[[], bool] = lambda: True,
) -> AsyncIterator[Session]:
    async with target.client(url) as client:
        patience = Patience(client, give_up_s, report, alive)
        server = await discover(
            client,
            model=target.model,
            given=target.row_settings(settings),
            metrics_url=target.metrics_url,
            patience=patience,
        )
        server = await probe(
            client, server, chat=target.chat, token_ids=target.token_ids, patience=patience
        )
        # Not from a seed: the same prompts again would meet a server that has cached them.
        prompts = await make_prompts(client, server, random.Random(), patience=patience)
        yield Session(client, server, prompts, alive)


@asynccontextmanager
async def _launched(
    target: Target,
    template: str,
    settings: Settings,
    stem: Path,
    give_up_s: float,
    report: Callable[[str], None],
) -> AsyncIterator[Session]:
    url = base_url(target.url) if target.url else None
    port = _port(url) if url else None
    if url is None:
        if "port" not in placeholders(template):
            raise ServefitError("--launch has no {port}: add it, or give the server's URL")
        port = free_port()
        url = f"http://127.0.0.1:{port}"
    pid_file = Path(f"{stem}.server.pid")
    clean_up(pid_file)
    label = "".join(f".{name}-{value}" for name, value in settings)
    label = re.sub(r"[^\w.,=+-]", "_", label)[:MAX_LABEL]
    log = Path(f"{stem}{label}.server.log")
    launched = LaunchedServer(fill(template, {**dict(settings), "port": str(port)}), log, pid_file)
    _refuse_busy(url)
    report(f"starting the server, its log is {log}")
    try:
        launched.start()
        async with target.client(url) as client:
            await launched.until_healthy(client, target.launch_timeout_s, give_up_s)
            async with AsyncExitStack() as stack:
                try:
                    session = await stack.enter_async_context(
                        _connected(target, url, settings, give_up_s, report, lambda: launched.alive)
                    )
                except ServefitError:
                    if launched.alive:
                        raise
                    raise launched.ended(client) from None
                yield session
    finally:
        launched.stop()


def _dtype(name: str, value: str) -> str | None:
    """The canonical name; ``None`` for ``auto``, which says nothing."""
    if value == "auto":
        return None
    try:
        return canonical_dtype(value)
    except ServefitError as error:
        raise ServefitError(
            f"--set {name}={value}: {error}; where the server calls it so, name it otherwise in "
            "--launch"
        ) from None


def _port(url: str) -> int:
    """The port of an address that `base_url` has taken."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def _refuse_busy(url: str) -> None:
    """Raise `LaunchFailedError` where somebody else answers already: we would measure that."""
    try:
        socket.create_connection((urlsplit(url).hostname or "", _port(url)), timeout=2.0).close()
    except OSError:
        return
    raise LaunchFailedError(f"the port is in use: another server answers at {url}")
