"""This machine's CPU, measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from servefit.errors import ServefitError
from servefit.hardware import Hardware, load_hardware_file, measure
from servefit.hardware.files import hardware_toml


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take milliseconds; the rates then mean little."""
    monkeypatch.setattr(measure, "MATRIX_SIZE", 256)
    monkeypatch.setattr(measure, "SMALLEST_COPY_BYTES", 2**20)
    monkeypatch.setattr(measure, "_largest_cache_bytes", lambda: 0)
    monkeypatch.setattr(measure, "SECONDS_A_RATE", 0.01)
    monkeypatch.setattr(measure, "MOST_SECONDS_A_RATE", 0.05)


@pytest.mark.usefixtures("small")
def test_both_rates_are_measured_and_say_how() -> None:
    pytest.importorskip("threadpoolctl")
    cpu = measure.measure_cpu(threads=1)
    assert cpu.name.startswith("cpu: ")
    assert cpu.name.endswith(", 1 thread")
    # A core does more than 10 MFLOP/s and less than 10 TFLOP/s.
    assert 1e7 < (cpu.peak_flops("float32") or 0) < 1e13
    assert 1e7 < (cpu.memory_bandwidth_bytes_per_s or 0) < 1e13
    assert "256 x 256" in cpu.sources["peak_flops_per_s"]
    assert "copy of 1 MiB" in cpu.sources["memory_bandwidth_bytes_per_s"]


@pytest.mark.usefixtures("small")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_several_threads_copy_and_multiply_together() -> None:
    pytest.importorskip("threadpoolctl")
    assert measure.measure_cpu(threads=2).name.endswith(", 2 threads")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [0, 100_000])
def test_threads_that_the_process_does_not_have_are_refused(threads: int) -> None:
    with pytest.raises(ServefitError, match=f"threads = {threads}: this process may use from 1"):
        measure.measure_cpu(threads)


def test_without_threadpoolctl_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    with pytest.raises(ServefitError, match=r"pip install 'servefit\[local\]'"):
        measure.measure_cpu()


@pytest.mark.parametrize(
    ("threads", "waits", "expected"),
    [
        (1, [0.0, 0.0, 0.5], 1.0),  # the last one is set aside
        (1, [0.5, 0.4, 0.6], 0.5),  # all waited: the median without the waits
        (2, [0.5, 0.4, 0.6], 1.0),  # with several threads the waits stay in
    ],
)
def test_calls_that_waited_for_a_core_do_not_count(
    threads: int, waits: list[float], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = 0.0, 0.0
    script = iter([0.0, *waits])

    def work() -> None:
        nonlocal now, waited
        now += 1.0
        waited += next(script)

    monkeypatch.setattr(measure, "time_and_wait_s", lambda thread: (now, waited))
    monkeypatch.setattr(measure, "SECONDS_A_RATE", 2.5)
    monkeypatch.setattr(measure, "MOST_SECONDS_A_RATE", 2.5)
    seconds, _ = measure._best_seconds(work, threads)
    assert seconds == pytest.approx(expected)


def test_a_measurement_is_read_back_from_its_file(tmp_path: Path) -> None:
    cpu = Hardware(
        name='cpu: "Odd" \\ name\t\x7f é',
        peak_flops_per_s={"float32": 1.5e11},
        memory_bandwidth_bytes_per_s=2.5e10,
        vendor="Odd & Sons",
        sources={"peak_flops_per_s": "measured", "memory_bandwidth_bytes_per_s": "measured"},
    )
    path = tmp_path / "cpu.toml"
    path.write_text(hardware_toml(cpu), encoding="utf-8")
    assert load_hardware_file(path) == (cpu,)
