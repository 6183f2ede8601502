"""A small table of invented runs that follow SLIM, and a way to run the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servefit.cli import main

MODELS = ("facebook/opt-1.3b", "facebook/opt-2.7b")


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run ``servefit ARGUMENTS`` in this process."""

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["servefit", *map(str, arguments)])
        capfd.readouterr()
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capfd.readouterr()
        return Outcome(status, out, err)

    return call


def e2e_s(model: str, output_tokens: int, batch: float) -> float:
    """An invented server: linear in batch and output, twice as slow for the larger model."""
    scale = 1.0 if model == MODELS[0] else 2.0
    return 0.05 + scale * (40 + batch) * output_tokens * 1e-4


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    lines = ["model,gpu,input_tokens,output_tokens,mean_batch,max_num_seqs,e2e_mean_s,preemptions"]
    for model in MODELS:
        for output in (64, 256):
            for batch in (1, 4, 16, 64):
                seconds = e2e_s(model, output, batch)
                row = (model, "H100", 128, output, batch, batch, f"{seconds:.6g}", 0)
                lines.append(",".join(map(str, row)))
    file = tmp_path / "runs.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.fixture
def calibration(run: Run, runs: Path, tmp_path: Path) -> Path:
    file = tmp_path / "fit.json"
    assert run("fit", runs, "--law", "slim", "-o", file).status == 0
    return file
