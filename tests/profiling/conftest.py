"""Fixtures of the stub server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servefit.profiling import patience
from tests.stub_process import Stub, start_stub, stop_stub


@pytest.fixture(scope="session")
def _stub() -> Iterator[Stub]:
    stub = start_stub()
    yield stub
    stop_stub(stub)


@pytest.fixture
def stub(_stub: Stub) -> Stub:
    """The stub server with its default script."""
    _stub.script()
    return _stub


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures that do not pass would cost every test seconds or minutes."""
    monkeypatch.setattr(patience, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(patience, "PATIENCE_S", 1.0)
    monkeypatch.setattr(patience, "STRANGER_PATIENCE_S", 0.05)
    monkeypatch.setattr(patience, "OPTIONAL_PATIENCE_S", 0.3)
