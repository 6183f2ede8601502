"""The stub server as a process of its own, so that it does not share the client's event loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
STUB = Path(__file__).with_name("stub_server.py")


@dataclass
class Stub:
    """A running stub server."""

    url: str
    process: subprocess.Popen[str]

    def script(self, **script: Any) -> None:
        """Set how it behaves from now on, and empty its log."""
        self._post("/stub/script", script)

    def log(self) -> list[dict[str, Any]]:
        """Every generation request since the script was set."""
        with urllib.request.urlopen(self.url + "/stub/log", timeout=10) as reply:
            log: list[dict[str, Any]] = json.load(reply)
        return log

    def _post(self, path: str, body: Any) -> None:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode())
        urllib.request.urlopen(request, timeout=10).close()


def start_stub(port: int = 0) -> Stub:
    process = subprocess.Popen(
        [sys.executable, str(STUB), str(port)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return Stub(f"http://127.0.0.1:{process.stdout.readline().strip()}", process)


def stop_stub(stub: Stub) -> None:
    stub.process.kill()
    stub.process.wait()
    assert stub.process.stdout is not None
    stub.process.stdout.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with a time limit, so that no test hangs."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())
