"""`servefit explore` as a user starts it, and Debian's chromium to look at it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from servefit import api
from tests.cli.conftest import run
from tests.report.conftest import hostile

__all__ = ["run"]

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
#: Nothing of the browser's own on the network.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Watched:
    """A page, and all that should not have happened on it."""

    page: Page
    origin: str
    faults: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> Page:
        self.page.goto(f"{self.origin}/{query}")
        self.page.wait_for_selector("#side-a[data-answered]", timeout=60_000)
        return self.page


def invented_runs(path: Path) -> Path:
    """Runs of an invented server, a few per cent off the step law's priors."""
    law = api.as_calibration("prior:step")
    lines = ["model,gpu,input_tokens,output_tokens,mean_batch,max_num_seqs,e2e_mean_s,preemptions"]
    for index, batch in enumerate((1, 2, 4, 8, 16, 32, 64, 128)):
        points = api.points_of(
            law, model="facebook/opt-1.3b", gpu="H100", input_tokens=250, output_tokens=390,
            batch=batch,
        )  # fmt: skip
        seconds = float(api.predict(law, points).e2e_s) * (1.02 if index % 2 else 0.98)
        lines.append(f"facebook/opt-1.3b,H100,250,390,{batch},{batch},{seconds:.6g},0")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="session")
def origin(folder: Path) -> Iterator[str]:
    runs = invented_runs(folder / "runs.csv")
    fit = folder / "fit.json"
    fit.write_text(api.fit(api.read_runs(runs)).to_json())
    with runs.open("a") as file:  # Measured later than the fit.
        file.write("facebook/opt-1.3b,H100,250,390,200,200,7.1,0\n")
    trace = folder / "chat.csv"
    trace.write_text("input_tokens,output_tokens\n100,50\n900,700\n300,200\n")
    yield from started(folder, fit.name, "--runs", runs.name, "--workload", trace.name)


@pytest.fixture(scope="session")
def hostile_origin(folder: Path) -> Iterator[str]:
    fit = folder / "hostile.json"
    fit.write_text(hostile().to_json())
    yield from started(folder, fit.name)


def started(folder: Path, *arguments: str) -> Iterator[str]:
    """The address that it prints, where it answers from then on."""
    command = [sys.executable, "-m", "servefit", "explore", *arguments, "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        origin = said.partition("/ (stop")[0]
        assert origin.startswith("http://127.0.0.1:"), said
        httpx.get(f"{origin}/vega.js", timeout=60).raise_for_status()
        yield origin
    finally:
        process.terminate()
        assert process.communicate()[1] == ""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


def watched(browser: Browser, origin: str, width: int, scheme: str) -> Watched:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    context.set_default_timeout(30_000)
    watch = Watched(context.new_page(), origin)
    faults = watch.faults

    def answered(status: int, url: str) -> None:
        if status >= 500:
            faults.append(f"{status} {url}")

    def asked(url: str) -> None:
        if not url.startswith((f"{origin}/", "data:", "blob:")):
            faults.append(f"request to {url}")

    def said(kind: str, text: str) -> None:
        # Chromium reports a 422, which is an answer, as an error.
        if kind == "error" and "422" not in text:
            faults.append(text)

    watch.page.on("console", lambda message: said(message.type, message.text))
    watch.page.on("pageerror", lambda error: faults.append(str(error)))
    watch.page.on("request", lambda request: asked(request.url))
    watch.page.on("response", lambda response: answered(response.status, response.url))
    watch.page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
    return watch


@pytest.fixture
def watch(browser: Browser, origin: str) -> Iterator[Watched]:
    found = watched(browser, origin, 1440, "light")
    yield found
    found.page.context.close()
    assert found.faults == []
