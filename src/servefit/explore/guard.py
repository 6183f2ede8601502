"""To whom the page answers: requests addressed to this machine or to a name given for it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from servefit.errors import ServefitError

#: Names of this machine that only programs on it reach it by.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^:@/\[\]]+))(?::[0-9]+)?")


class Guard:
    """Refuses requests addressed to another host (DNS rebinding); adds the headers to the rest."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        """An application, and the names that it may be asked for by, in lower case."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        enough = 1
        if "://" in scope["path"] and not scope["path"].startswith("/"):
            # A target that is a whole URL says itself what it is addressed to (RFC 9112, 3.2.2).
            absolute = urlsplit(scope["path"])
            named.append(absolute.netloc)
            path = absolute.path or "/"
            scope = {**scope, "path": path, "raw_path": path.encode()}
            enough = 2
        if len(named) != enough or not {host_of(name) for name in named} <= self._hosts:
            response = JSONResponse(
                {"errors": {"": "this page answers only to the address that it was started at"}},
                status_code=421,
            )
            await response(scope, receive, with_headers)
            return
        await self._app(scope, receive, with_headers)


def host_of(header: str) -> str | None:
    """The host of a Host header, without port and brackets: ``[::1]:8000`` -> ``::1``.

    ``None`` where the header is anything but a host and a port.
    """
    found = _HOST.fullmatch(header.strip().lower())
    return None if found is None else found["ipv6"] or found["name"].rstrip(".")


def names_given(texts: Iterable[str]) -> list[str]:
    """Hosts that the page may be asked for by, without ports: ``gpu-box:9811`` -> ``gpu-box``.

    Raises:
        ServefitError: a text that names no host.
    """
    names = []
    for text in texts:
        try:
            name: str | None = str(ip_address(text.strip()))
        except ValueError:
            name = host_of(text)
        if not name:
            raise ServefitError(f"--allow-host {text!r}: no host: give a name, such as gpu-box")
        names.append(name)
    return names


def is_everywhere(bound: str) -> bool:
    """Whether an IP address means every interface: no name to be addressed by."""
    return ip_address(bound.partition("%")[0]).is_unspecified


def addresses(host: str, bound: str, port: int, others: Iterable[str]) -> list[str]:
    """URLs at which the page answers, the one for this machine first.

    Args:
        host: as asked for.
        bound: the IP address that came of it.
        port: listened at.
        others: further names, see `names_given`; these are of use where every interface listens.
    """
    loopback = "::1" if ":" in bound else "127.0.0.1"
    names = [loopback, *others] if is_everywhere(bound) else [host]
    return [
        f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/" for name in names
    ]
