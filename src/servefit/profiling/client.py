"""The HTTP client: one streamed request with exact timestamps.

aiohttp, because its C parser costs a third of httpx's CPU time a chunk (about 35 against 110
microseconds at 128 streams), which is what bounds the timing error of a busy client.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import yarl

from servefit.errors import ServefitError
from servefit.profiling.answer import Answer
from servefit.profiling.record import Record
from servefit.profiling.replies import (
    Reply,
    encoding_of,
    encoding_refusal,
    kind_of,
    location_of,
    message_of,
    retry_after,
)

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
#: Servers built on uvicorn close idle connections after 5 s: let go of them before that.
KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 10.0
QUERY_TIMEOUT_S = 10.0
MAX_DETAIL = 200
#: No page, list of models or tokenised text is longer; what is, is not read to its end.
MAX_REPLY_BYTES = 16 * 2**20
#: A connection that was closed while it was idle breaks so soon after it is used again.
STALE_S = 1.0
#: After ``[DONE]`` the end of the body is waited for by the request, and then without it.
DRAIN_S, LONG_DRAIN_S = 0.02, 0.3


def base_url(url: str) -> str:
    """The server's address without ``/v1``.

    Raises:
        ServefitError: not an http(s) address, one of a route, or one that carries a secret.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        yarl.URL(parts.geturl())
        port = parts.port
        if port == 0 or any(map(str.isspace, url)):
            raise ValueError("port 0" if port == 0 else "white space")
    except ValueError as error:
        told = "the address" if "@" in url or "?" in url else url  # no secret is repeated
        port_is_wrong = "port" in str(error).lower()
        why = "its port is no number from 1 to 65535" if port_is_wrong else "is malformed"
        raise ServefitError(f"{told}: {why}: give http://HOST:PORT") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServefitError(f"{url}: is not a server's address: give http://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ServefitError(
            f"{parts.scheme}://{parts.hostname}: an address with a user, password or query is "
            "refused, since it could leak a secret: put the API key into the environment"
        )
    path = parts.path.rstrip("/")
    for route in (*PATHS.values(), "/v1/models"):
        if path.endswith(route):
            base = urlunsplit((parts.scheme, parts.netloc, path.removesuffix(route), "", ""))
            raise ServefitError(f"{url}: is one route of a server: give its base URL, {base}")
    return urlunsplit((parts.scheme, parts.netloc, path.removesuffix("/v1"), "", ""))


@dataclass
class _Attempt:
    """One way of a request over a connection: whether that had been used before."""

    record: Record
    reused: bool = False


class Client:
    """Connections to one server; use as an asynchronous context manager.

    Attributes:
        url: the server's address.
        failure: why the last `query` without an answer had none.

    Args:
        url: the server's address, see `base_url`.
        api_key: sent as a bearer token, and removed from every message.
        verify_tls: check the server's certificate.
        ca_file: certificates to trust instead of the system's.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        verify_tls: bool = True,
        ca_file: str | None = None,
    ) -> None:
        """Nothing is opened yet."""
        self.failure = ""
        self.url = base_url(url)
        self._key = api_key
        self._tls: ssl.SSLContext | bool = verify_tls
        if verify_tls and ca_file is not None:
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ServefitError(f"{ca_file}: no certificates can be read: {error}") from None
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._leaves_open = False
        self._drains: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Open the session."""
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_stamp_sent)
        trace.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=self._tls),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            trace_configs=[trace],
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        for task in self._drains:
            task.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open session."""
        if self._session is None:
            raise RuntimeError("use `async with Client(...)`")
        return self._session

    def without_key(self, text: str) -> str:
        """``text`` without the API key; cut it only afterwards, or a part of the key stays."""
        return text.replace(self._key, "***") if self._key else text

    def redact(self, text: str) -> str:
        """``text`` on one line, without the API key, and not long."""
        text = " ".join(self.without_key(text).split())
        return text if len(text) <= MAX_DETAIL else text[: MAX_DETAIL - 3] + "..."

    async def query(
        self, path: str, data: Any = None, *, timeout_s: float = QUERY_TIMEOUT_S
    ) -> Reply | None:
        """GET ``path``, or POST ``data`` to it; ``None`` where there is no answer to be had.

        A whole URL instead of a path is asked without the API key.
        """
        away = "://" in path
        try:
            async with asyncio.timeout(timeout_s):
                async with self.session.request(
                    "GET" if data is None else "POST",
                    path if away else self.url + path,
                    json=data,
                    headers={} if away else self._headers,
                    allow_redirects=False,
                ) as response:
                    body = await _head(response.content, MAX_REPLY_BYTES + 1)
                    if len(body) > MAX_REPLY_BYTES:
                        response.close()
                        self.failure = f"protocol: an answer of more than {MAX_REPLY_BYTES} bytes"
                        return None
                    text = body.decode("utf-8", "replace")
                    return Reply(
                        response.status,
                        text,
                        retry_after(response.headers),
                        encoding_of(response.headers),
                        location_of(response.status, response.headers),
                    )
        except aiohttp.InvalidURL:
            raise ServefitError(
                f"{path}: is no address: give it as http://HOST:PORT/metrics"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failure = self.redact(f"{kind_of(error)}: {str(error) or type(error).__name__}")
            return None

    async def generate(self, endpoint: Endpoint, body: bytes, record: Record) -> None:
        """Send ``body`` and fill in ``record``; failures of the server are recorded, not raised.

        A cancelled call marks the record as cancelled, closes its connection and raises.
        """
        record.scheduled_s = record.scheduled_s or time.perf_counter()
        try:
            response = await self._post(endpoint, body, record)
            try:
                await self._read(response, record)
            except BaseException:
                response.close()
                raise
            if record.outcome == "failed":
                response.close()
            else:
                await self._drain(response)
        except asyncio.CancelledError:
            if record.outcome == "running":
                record.outcome, record.finished_s = "cancelled", time.perf_counter()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError, ServefitError) as error:
            record.fail(kind_of(error), f"{type(error).__name__}: {error}", time.perf_counter())
        finally:
            if record.detail is not None:
                record.detail = self.redact(record.detail)

    async def _post(
        self, endpoint: Endpoint, body: bytes, record: Record
    ) -> aiohttp.ClientResponse:
        """Send ``body`` up to the head of the answer.

        A server may close a connection just when it is used again. One that breaks at once and
        before any answer is replaced by another, and the request counts from there.
        """
        while True:
            attempt = _Attempt(record)
            try:
                return await self.session.post(
                    self.url + PATHS[endpoint],
                    data=body,
                    headers={"Content-Type": "application/json", **self._headers},
                    allow_redirects=False,
                    trace_request_ctx=attempt,
                )
            except (aiohttp.ClientConnectionError, ConnectionError):
                sent_s = record.sent_s or time.perf_counter()
                if not attempt.reused or time.perf_counter() - sent_s > STALE_S:
                    raise
                record.reconnects += 1
                record.sent_s = None

    async def _read(self, response: aiohttp.ClientResponse, record: Record) -> None:
        """Read the answer up to its end, or to what fails it."""
        if await self._refused(response, record):
            return
        answer = Answer(record)
        async for data in response.content.iter_any():
            answer.feed(data, time.perf_counter())
            if answer.done or record.outcome == "failed":
                break
        answer.end(time.perf_counter())

    async def _drain(self, response: aiohttp.ClientResponse) -> None:
        """Read the rest of a body, so that its connection can be used again.

        It mostly comes with ``[DONE]``. Where it does not, the request does not wait; a server that
        has once left a stream open is no more waited for at all.
        """
        if response.content.at_eof():
            return
        if self._leaves_open:
            response.close()
            return
        rest = asyncio.create_task(self._read_rest(response))
        self._drains.add(rest)
        rest.add_done_callback(self._drains.discard)
        await asyncio.wait([rest], timeout=DRAIN_S)

    async def _read_rest(self, response: aiohttp.ClientResponse) -> None:
        try:
            async with asyncio.timeout(LONG_DRAIN_S):
                async for _ in response.content.iter_any():
                    pass
        except TimeoutError:
            self._leaves_open = True
        except (aiohttp.ClientError, OSError):
            pass  # cut: the answer was whole
        finally:
            response.close()

    async def _refused(self, response: aiohttp.ClientResponse, record: Record) -> bool:
        """Record an answer that is no stream of events."""
        kind, encoding = response.content_type, encoding_of(response.headers)
        if response.status == 200 and kind == "text/event-stream" and encoding is None:
            return False
        text = ""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                text = (await _head(response.content, 4096)).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        response.close()
        error, message = f"http_{response.status}", f"HTTP {response.status}: {message_of(text)}"
        if (location := location_of(response.status, response.headers)) is not None:
            message = f"HTTP {response.status}: redirects to {location}, which is not followed"
        elif encoding is not None:
            error, message = "content_encoding", encoding_refusal(encoding)
        elif response.status == 200:
            error, message = "content_type", f"content type {kind} instead of text/event-stream"
        record.fail(error, self.redact(message), time.perf_counter())
        record.retry_after_s = retry_after(response.headers)
        return True


async def _head(content: aiohttp.StreamReader, most: int) -> bytes:
    """The first bytes of a body, however they are cut on their way."""
    data = bytearray()
    while len(data) < most and (part := await content.read(most - len(data))):
        data += part
    return bytes(data)


async def _stamp_sent(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Note when a request's bytes go to its socket, after any wait for a connection."""
    attempt = getattr(context, "trace_request_ctx", None)
    if isinstance(attempt, _Attempt):
        attempt.record.sent_s = time.perf_counter()


async def _note_reuse(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Note that a request goes over a connection that was used before."""
    attempt = getattr(context, "trace_request_ctx", None)
    if isinstance(attempt, _Attempt):
        attempt.reused = True
