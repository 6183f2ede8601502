"""What an HTTP answer or its failure says, besides its body."""

from __future__ import annotations

import email.utils
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

#: A longer pause asked for by ``Retry-After`` is not waited for.
MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True)
class Reply:
    """A short, complete answer.

    Attributes:
        status: of HTTP.
        text: the body.
        retry_after_s: the pause that it asks for.
        encoding: how the body is compressed, though that was refused; ``None``: it is not.
        location: where a redirect leads; redirects are not followed.
    """

    status: int
    text: str
    retry_after_s: float | None = None
    encoding: str | None = None
    location: str | None = None

    def json(self) -> Any:
        """The body as JSON; ``None`` where it is none."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def astray(self) -> str | None:
        """Why this is no answer of an inference server's own, and what to do about it."""
        if self.location is not None:
            return (
                f"HTTP {self.status} redirects to {self.location}, and redirects are not followed "
                "since the API key would be: give the address where they end"
            )
        if self.encoding is not None:
            return encoding_refusal(self.encoding)
        return None


def encoding_of(headers: Mapping[str, str]) -> str | None:
    """The content encoding of an answer; ``None``: none."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    return None if encoding in ("", "identity") else encoding


def encoding_refusal(encoding: str) -> str:
    """What to say of an answer that is compressed."""
    return (
        f"answers with content encoding {encoding}, though only identity is accepted, and "
        "compression delays tokens: switch it off (in a proxy?)"
    )


def location_of(status: int, headers: Mapping[str, str]) -> str | None:
    """Where an answer redirects to; ``None``: it does not."""
    return headers.get("Location", "nowhere") if status in (301, 302, 303, 307, 308) else None


def kind_of(error: BaseException) -> str:
    """A failed exchange in one word."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return "connect"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return "cut"
    return "protocol"


def message_of(text: str) -> str:
    """The words of an error body, whichever of the usual forms it has."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(body, dict):
        return text
    error = body.get("error", body.get("detail", body.get("message", text)))
    return str(error.get("message", error) if isinstance(error, dict) else error)


def retry_after(headers: Mapping[str, str]) -> float | None:
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
