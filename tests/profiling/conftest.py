"""Fixtures of the stub server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
