"""``servefit demo`` and ``servefit hardware --measure``."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from servefit.calibration import load_calibration
from servefit.hardware import Hardware, load_hardware_file
from servefit.local import campaign, demo
from servefit.local.decoder import opt_config

from .conftest import Run

SECTIONS = ("1. Measured", "2. SLIM", "3. Predicted", "4. Advised", "5. Verified")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same demo on a decoder that takes milliseconds, and peaks that are not measured."""
    pytest.importorskip("ctranslate2")
    monkeypatch.setattr(demo, "opt_config", lambda *_: opt_config(2, 64, vocab_size=256))
    monkeypatch.setattr(campaign, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(campaign, "MOST_SECONDS", 0.0)

    def invented(threads: int) -> Hardware:
        return Hardware(
            name=demo.cpu_name(threads),
            peak_flops_per_s={"float32": 2e11},
            memory_bandwidth_bytes_per_s=5e10,
            memory_bytes=1e10,
        )

    monkeypatch.setattr(demo, "measure_cpu", invented)


@pytest.mark.real_engine
@pytest.mark.usefixtures("tiny")
def test_measures_fits_advises_and_verifies_on_unseen_points(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, fit = tmp_path / "runs.csv", tmp_path / "fit.json"
    files = ("-o", runs, "--calibration", fit)
    outcome = run("demo", "--quick", "--threads", 1, "--json", *files)
    assert outcome.status == 0
    answer = outcome.json

    trained = len(answer["calibration"]["residuals"])
    assert trained == 9
    assert len(answer["runs"]) == trained + sum(
        not _is_trained(check, answer) for check in answer["checks"]
    )
    assert not any(_is_trained(check, answer) for check in answer["checks"])
    for check in answer["checks"]:
        for name, error in check["error_pct"].items():
            ratio = check["predicted"][name] / check["measured"][name]
            assert error == pytest.approx(100 * (ratio - 1))
    errors = [abs(check["error_pct"]["total_tokens_per_s"]) for check in answer["checks"]]
    assert answer["mape_pct"]["total_tokens_per_s"] == pytest.approx(
        math.fsum(errors) / len(errors)
    )

    loaded = load_calibration(fit)
    assert json.loads(loaded.to_json())["parameters"] == answer["calibration"]["parameters"]
    checked = run("check", runs, "--json").json
    assert checked["rows"] == len(answer["runs"])
    assert checked["refused"] == 0

    # A second run finds every row: the engine is not even loaded.
    monkeypatch.setattr(campaign, "local_engine", None)
    again = run("demo", "--quick", "--threads", 1, "--json", *files)
    assert again.json["calibration"]["parameters"] == answer["calibration"]["parameters"]
    told = run("demo", "--quick", "--threads", 1, *files)
    assert told.status == 0
    assert all(section in told.out for section in SECTIONS)
    assert "Mean absolute error: throughput" in told.out
    assert "rows were measured before" in told.out

    if answer["slo"] is not None:
        slo = answer["slo"]
        assert slo["held"] == (slo["measured_s"] <= slo["limit_s"])
        assert ("holds" if slo["held"] else "is missed") in told.out

    other = run("demo", "--quick", "--threads", 2, *files)
    assert other.status == 2
    assert "write to another file" in other.err


def _is_trained(check: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Whether a verified point is among the rows that the fit saw, which come first."""
    keys = ("model", "input_tokens", "output_tokens", "batch")
    trained = [tuple(row[key] for key in keys) for row in answer["runs"][:9]]
    return tuple(check["point"][key] for key in keys) in trained


def test_demo_without_the_engine_names_the_remedy(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    outcome = run("demo")
    assert outcome.status == 2
    assert "pip install 'servefit[local]'" in outcome.err
    assert outcome.err.count("\n") == 1


def test_measured_hardware_is_written_and_read_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("threadpoolctl")
    from servefit.hardware import measure

    monkeypatch.setattr(measure, "MATRIX_SIZE", 128)
    monkeypatch.setattr(measure, "SMALLEST_COPY_BYTES", 2**20)
    monkeypatch.setattr(measure, "_largest_cache_bytes", lambda: 0)
    monkeypatch.setattr(measure, "SECONDS_A_RATE", 0.01)
    monkeypatch.setattr(measure, "MOST_SECONDS_A_RATE", 0.02)
    path = tmp_path / "cpu.toml"
    shown = run("hardware", "--measure", "--threads", 1, "-o", path, "--json")
    assert shown.status == 0
    (cpu,) = load_hardware_file(path)
    assert shown.json["peak_flops_per_s"] == dict(cpu.peak_flops_per_s)
    assert cpu.name in run("hardware", "--file", path, cpu.name).out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--measure", "H100"), "give no NAME"),
        (("--threads", 1), "--threads goes with --measure"),
        (("-o", "x.toml"), "-o writes one accelerator"),
    ],
)
def test_options_that_do_not_go_together(
    run: Run, arguments: tuple[object, ...], message: str
) -> None:
    outcome = run("hardware", *arguments)
    assert outcome.status == 2
    assert message in outcome.err
