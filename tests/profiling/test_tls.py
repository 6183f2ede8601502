"""TLS certificates are verified unless the user says otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.profiling.client import Client
from servefit.profiling.discover import discover
from tests.stub_process import STUB, run


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1, with its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=stub"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *words, *names, *files], check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    return both


@pytest.fixture(scope="module")
def url(certificate: Path) -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, str(STUB)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STUB_CERTIFICATE": str(certificate)},
    )
    assert server.stdout is not None
    yield f"https://127.0.0.1:{server.stdout.readline().strip()}"
    server.kill()
    server.wait()
    server.stdout.close()


def model(url: str, *, verify_tls: bool = True, ca_file: str | None = None) -> str:
    async def work() -> str:
        async with Client(url, verify_tls=verify_tls, ca_file=ca_file) as client:
            return (await discover(client)).model

    return run(work())


def test_an_unknown_certificate_is_refused_and_the_reason_told(url: str) -> None:
    with pytest.raises(ServefitError, match=r"no answer \(tls: .*certificate verify failed"):
        model(url)


def test_a_certificate_that_the_user_trusts_is_accepted(url: str, certificate: Path) -> None:
    assert model(url, ca_file=str(certificate)) == "stub-model"


def test_verification_can_be_turned_off_by_hand_only(url: str) -> None:
    assert model(url, verify_tls=False) == "stub-model"


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServefitError, match="no certificates can be read"):
        Client("https://127.0.0.1:9", ca_file=str(tmp_path / "none.pem"))
