"""The HTTP client: one streamed request with exact timestamps.

aiohttp, because its C parser costs a third of httpx's CPU time a chunk (about 35 against 110
microseconds at 128 streams), which is what bounds the timing error of a busy client.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Self
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from servefit.errors import ServefitError
from servefit.profiling.record import Record
from servefit.profiling.sse import EventDecoder

Endpoint = Literal["completions", "chat"]
PATHS: dict[Endpoint, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
#: Servers built on uvicorn close idle connections after 5 s: let go of them before that.
KEEPALIVE_S = 3.0
CONNECT_TIMEOUT_S = 10.0
QUERY_TIMEOUT_S = 10.0
#: A longer pause asked for by ``Retry-After`` is not waited for.
MAX_RETRY_AFTER_S = 60.0
MAX_DETAIL = 200
#: What `json.loads` does with text, without its guess at an encoding.
DECODE = json.JSONDecoder().decode
#: No page, list of models or tokenised text is longer; what is, is not read to its end.
MAX_REPLY_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Reply:
    """A short, complete answer: its status, its body as text, the pause that it asks for."""

    status: int
    text: str
    retry_after_s: float | None = None

    def json(self) -> Any:
        """The body as JSON; ``None`` where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


def base_url(url: str) -> str:
    """The server's address without ``/v1``.

    Raises:
        ServefitError: not an http(s) address, or one that carries a secret.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ServefitError(f"{url}: is not a server's address: give http://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ServefitError(
            f"{parts.scheme}://{parts.hostname}: an address with a user, password or query is "
            "refused, since it could leak a secret: put the API key into the environment"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


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

    async def __aenter__(self) -> Self:
        """Open the session."""
        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(_stamp_sent)
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
                    return Reply(response.status, text, _retry_after(response.headers))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failure = self.redact(f"{_kind(error)}: {str(error) or type(error).__name__}")
            return None

    async def generate(self, endpoint: Endpoint, body: bytes, record: Record) -> None:
        """Send ``body`` and fill in ``record``; failures of the server are recorded, not raised.

        A cancelled call marks the record as cancelled, closes its connection and raises.
        """
        record.scheduled_s = record.scheduled_s or time.perf_counter()
        try:
            async with self.session.post(
                self.url + PATHS[endpoint],
                data=body,
                headers={"Content-Type": "application/json", **self._headers},
                allow_redirects=False,
                trace_request_ctx=record,
            ) as response:
                if await self._refused(response, record):
                    return
                answer = _Answer(record)
                async for data in response.content.iter_any():
                    answer.feed(data, time.perf_counter())
                    if record.outcome == "failed":
                        response.close()
                        break
                answer.end(time.perf_counter())
        except asyncio.CancelledError:
            record.outcome, record.finished_s = "cancelled", time.perf_counter()
            raise
        except (aiohttp.ClientError, TimeoutError, OSError, ServefitError) as error:
            record.fail(_kind(error), f"{type(error).__name__}: {error}", time.perf_counter())
        finally:
            if record.detail is not None:
                record.detail = self.redact(record.detail)

    async def _refused(self, response: aiohttp.ClientResponse, record: Record) -> bool:
        """Record an answer that is no stream of events."""
        kind = response.content_type
        if response.status == 200 and kind == "text/event-stream":
            return False
        text = ""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                text = (await _head(response.content, 4096)).decode("utf-8", "replace")
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        response.close()
        error, message = f"http_{response.status}", f"HTTP {response.status}: {_message(text)}"
        if response.status == 200:
            error, message = "content_type", f"content type {kind} instead of text/event-stream"
        record.fail(error, self.redact(message), time.perf_counter())
        record.retry_after_s = _retry_after(response.headers)
        return True


async def _head(content: aiohttp.StreamReader, most: int) -> bytes:
    """The first bytes of a body, however they are cut on their way."""
    data = bytearray()
    while len(data) < most and (part := await content.read(most - len(data))):
        data += part
    return bytes(data)


class _Answer:
    """Reads the events of one answer into its record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.decoder = EventDecoder()
        self.counted = 0
        self.done = False

    def feed(self, data: bytes, at_s: float) -> None:
        for kind, text in self.decoder.feed(data):
            if self.record.outcome == "failed":
                return
            if text == b"[DONE]":
                self.done = True
                continue
            try:
                event = DECODE(text.decode())
            except (ValueError, RecursionError):  # the latter by nesting
                event = None
            if not isinstance(event, dict):
                self.record.fail(
                    "bad_json", f"not a JSON object: {text.decode('utf-8', 'replace')}", at_s
                )
                return
            if kind == "error" or event.get("error") or event.get("object") == "error":
                self.record.fail("error_event", _message(text.decode("utf-8", "replace")), at_s)
                return
            self._event(event, at_s)

    def _event(self, event: dict[str, Any], at_s: float) -> None:
        record = self.record
        tokens = None
        usage = event.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            record.output_tokens = usage["completion_tokens"]
            if isinstance(usage.get("prompt_tokens"), int):
                record.input_tokens = usage["prompt_tokens"]
            if self.counted or not record.chunk_s:  # else: only the last chunk has a count
                tokens = usage["completion_tokens"] - self.counted
                self.counted = usage["completion_tokens"]
        choices = event.get("choices")
        if not choices:
            return
        try:
            choice = choices[0]
            record.finish_reason = choice.get("finish_reason") or record.finish_reason
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            text = choice.get("text") or delta.get("content") or delta.get("tool_calls")
        except (AttributeError, LookupError, TypeError):
            record.fail("bad_json", f"malformed choices: {choices}", at_s)
            return
        # Text may be empty while tokens are produced (half a character): counts go before text.
        if not text and not reasoning and not (tokens or 0) > 0:
            record.empty_chunks += 1
            return
        record.reasoning_chunks += bool(reasoning)
        if record.first_token_s is None:
            record.first_token_s = at_s
        record.last_token_s = at_s
        record.chunk_s.append(at_s)
        record.chunk_tokens.append(tokens)

    def end(self, at_s: float) -> None:
        record = self.record
        if record.outcome == "failed":
            return
        if not self.done and record.finish_reason is None:
            record.fail("cut", "the stream ended before the answer did", at_s)
        elif record.first_token_s is None:
            counted = f", though {record.output_tokens} are counted" if record.output_tokens else ""
            record.fail("empty", f"no chunk of the answer shows a token{counted}", at_s)
        else:
            record.outcome, record.finished_s = "completed", at_s


async def _stamp_sent(_session: object, context: SimpleNamespace, _params: object) -> None:
    """Note when a request's bytes go to its socket, after any wait for a connection."""
    record = getattr(context, "trace_request_ctx", None)
    if isinstance(record, Record):
        record.sent_s = time.perf_counter()


def _kind(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return "connect"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return "cut"
    return "protocol"


def _message(text: str) -> str:
    """The words of an error body, whichever of the usual forms it has."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(body, dict):
        return text
    error = body.get("error", body.get("detail", body.get("message", text)))
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a ``Retry-After`` header: a number, or a date by the server's own clock."""
    value = headers.get("Retry-After", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            dates = [email.utils.parsedate_to_datetime(d) for d in (value, headers.get("Date", ""))]
            seconds = (dates[0] - dates[1]).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(seconds) else None
