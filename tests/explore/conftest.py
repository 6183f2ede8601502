"""A real server on a free port of loopback, with everything but the browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from servefit import api
from servefit.explore.app import Vega, application
from servefit.explore.session import Session
from servefit.workload import Workload
from tests.cli.conftest import run

__all__ = ["run"]

ASKED = {
    "model": "facebook/opt-1.3b",
    "gpu": "H100",
    "input_tokens": "250",
    "output_tokens": "390",
    "slo_ms": "9",
}


class Script(Vega):
    """In place of Vega, which takes seconds to put together."""

    def __init__(self) -> None:
        pass

    def read(self) -> bytes:
        return b"window.vegaEmbed = null;"


@pytest.fixture(scope="session")
def session() -> Session:
    return Session(
        api.as_calibration("prior:step"),
        name="prior:step",
        workloads={"chat.csv": Workload.from_lengths([100, 900], [50, 700], "chat.csv")},
    )


@pytest.fixture(scope="session")
def address(session: Session) -> Iterator[str]:
    app = application(session, Script(), ["gpu-box"])
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listener.close()


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{address}", timeout=60) as found:
        yield found


def view(client: httpx.Client, **changes: str) -> dict[str, object]:
    response = client.get("/api/view", params=ASKED | changes)
    assert response.status_code == 200, response.text
    found: dict[str, object] = response.json()
    return found
