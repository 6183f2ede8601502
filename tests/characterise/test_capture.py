"""Running batches under a profiler, on an engine and a PyTorch that are stand-ins."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pytest

from servefit.characterise import capture as capture_module
from servefit.characterise.capture import (
    capture,
    check_one_process,
    mark_of,
    outer_command,
    start,
    write_description,
)
from servefit.characterise.classify import load_kernel_table
from servefit.characterise.marks import Mark, read_mark
from servefit.characterise.readers import read_profile
from servefit.characterise.run import Size
from servefit.errors import ServefitError
from servefit.offline.engine import OutOfTimeError, VllmEngine
from tests.characterise.builders import span
from tests.offline.fake_vllm import FakeLLM

SIZE = Size(2, 8, 4)


def engine(budget: int = 10**6) -> VllmEngine:
    return VllmEngine(FakeLLM(budget), {}, vocab_size=50, sampling=lambda n: n)


class FakeTorch(ModuleType):
    """Keeps what it was told: ranges, and starts and stops of the profiler."""

    def __init__(self, on_gpu: bool) -> None:
        super().__init__("torch")
        self.told: list[str] = []
        say = self.told.append
        self.cuda = SimpleNamespace(
            is_available=lambda: on_gpu,
            synchronize=lambda: None,
            profiler=SimpleNamespace(start=lambda: say("start"), stop=lambda: say("stop")),
            nvtx=SimpleNamespace(range_push=say, range_pop=lambda: say("pop")),
        )
        self.profiler = ModuleType("torch.profiler")
        self.profiler.ProfilerActivity = SimpleNamespace(CPU="cpu", CUDA="cuda")
        self.profiler.record_function = self.record_function
        self.profiler.profile = self.profile

    @contextmanager
    def record_function(self, name):
        self.told.append(name)
        yield

    @contextmanager
    def profile(self, activities):
        before = len(self.told)

        def export(path):
            events = []
            for i, name in enumerate(self.told[before:]):
                events.append(span(name, 100 * i, 90, "user_annotation"))
                events.append(span("aten::mm", 100 * i, 60))
            with open(path, "w") as file:
                json.dump({"traceEvents": events}, file)

        yield SimpleNamespace(export_chrome_trace=export)


@pytest.fixture
def torch(monkeypatch, request):
    module = FakeTorch(getattr(request, "param", False))
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch.profiler", module.profiler)
    return module


def test_marks_say_phase_batch_and_token_and_are_read_back():
    assert mark_of(SIZE, [0, 0]) == Mark("prefill", SIZE)
    assert mark_of(SIZE, [1, 0]) == Mark("mixed", SIZE)
    assert mark_of(SIZE, [2, 2]) == Mark("decode", SIZE, 3)
    for answered in ([0, 0], [1, 0], [2, 2]):
        mark = mark_of(SIZE, answered)
        assert read_mark(mark.name) == mark
    assert read_mark("servefit decode batch=0 input=1 output=1") is None
    assert read_mark("theirs") is None


def test_a_trace_holds_a_prefill_and_every_decode_step(torch, tmp_path):
    (path,) = capture(engine(), [SIZE], tmp_path)
    profile = read_profile(path, load_kernel_table())
    assert [step.phase for step in profile.steps] == ["prefill", "decode", "decode", "decode"]
    assert {step.size for step in profile.steps} == {SIZE}
    assert profile.seconds_by_class((SIZE, "decode"))["GEMM"] == pytest.approx(3 * 60e-6)
    assert [p.name for p in tmp_path.iterdir()] == ["b2_i8_o4.json.gz"]


def test_smaller_batches_come_first(torch, tmp_path):
    paths = capture(engine(), [Size(4, 8, 4), SIZE], tmp_path)
    assert [p.name for p in paths] == ["b2_i8_o4.json.gz", "b4_i8_o4.json.gz"]


@pytest.mark.parametrize("torch", [True], indirect=True)
def test_ncu_records_only_the_last_decode_steps(torch, tmp_path):
    assert capture(engine(), [SIZE], tmp_path, profiler="ncu", last_steps=2) == []
    at = [i for i, word in enumerate(torch.told) if word == "start"]
    names = [torch.told[i + 1].rsplit(" ", 1)[1] for i in at]
    assert names == ["token=3", "token=4"]
    assert torch.told.count("stop") == 2
    assert torch.told.count("pop") == 4


@pytest.mark.parametrize("torch", [True], indirect=True)
def test_nsys_records_every_step_until_the_last(torch, tmp_path):
    capture(engine(), [SIZE], tmp_path, profiler="nsys")
    assert torch.told[0] == "start"
    assert torch.told[-1] == "stop"
    assert torch.told.count("stop") == 1


@pytest.mark.usefixtures("torch")
def test_nsights_tools_need_a_gpu(tmp_path):
    with pytest.raises(ServefitError, match="--profiler ncu: needs a CUDA GPU"):
        capture(engine(), [SIZE], tmp_path, profiler="ncu")


def test_without_pytorch_capturing_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ServefitError, match="install servefit into vLLM's environment"):
        capture(engine(), [SIZE], tmp_path)


@pytest.mark.usefixtures("torch")
def test_a_batch_past_its_time_is_named(tmp_path):
    class Slow:
        def run(self, *args, **kwargs):
            raise OutOfTimeError

    with pytest.raises(ServefitError, match="B 2, IL 8, OL 3: not done in 5 s"):
        capture(Slow(), [SIZE], tmp_path, max_batch_s=5)


def test_the_commands_of_nsights_tools_wrap_ours():
    arguments = ["characterise", "--engine", "vllm-offline"]
    nsys = outer_command("nsys", "out", arguments)
    ncu = outer_command("ncu", "out", arguments)
    for command in (nsys, ncu):
        assert command[-len(arguments) :] == arguments
    assert "--capture-range=cudaProfilerApi" in nsys
    assert "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum" in ncu[ncu.index("--metrics") + 1]
    assert ncu[1:3] == ["--profile-from-start", "off"]


@pytest.fixture
def path(monkeypatch, tmp_path):
    """Stand-ins on PATH, which keep the words they were started with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, status: int) -> None:
        tool = folder / name
        tool.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nexit {status}\n')
        tool.chmod(0o755)

    return add


def test_a_tool_on_path_is_started(path, tmp_path):
    path("ncu", 0)
    start("ncu", str(tmp_path / "out"), ["characterise", "--batch", "2"])
    words = (tmp_path / "words").read_text()
    assert words.startswith("--profile-from-start off")
    assert words.rstrip().endswith("-m servefit characterise --batch 2")
    assert (tmp_path / "out").is_dir()


def test_a_tool_that_fails_or_is_absent_is_named(path, tmp_path):
    path("nsys", 3)
    with pytest.raises(ServefitError, match="--profiler nsys: ended with status 3"):
        start("nsys", str(tmp_path), [])
    with pytest.raises(ServefitError, match=r"ncu is not on PATH.* by --dry-run"):
        start("ncu", str(tmp_path), [])


def test_engines_of_several_processes_are_refused():
    check_one_process({"tensor_parallel_size": 1, "pipeline_parallel_size": None})
    with pytest.raises(ServefitError, match=r"tensor_parallel_size = 2: .* others"):
        check_one_process({"tensor_parallel_size": 2})


def test_what_was_run_lies_beside_the_traces(tmp_path):
    write_description(tmp_path, "opt", {"engine_version": "1", "gpu": None}, [SIZE])
    assert json.loads((tmp_path / "capture.json").read_text()) == {
        "model": "opt",
        "engine_version": "1",
        "sizes": [[2, 8, 4]],
    }


def test_the_machines_measured_peaks_are_read_back(monkeypatch, torch, tmp_path):
    from servefit.hardware import Hardware, load_hardware_file

    cpu = Hardware("cpu: x", {"float32": 1e11}, 2e10)
    monkeypatch.setattr(capture_module, "measure_torch_cpu", lambda module: cpu)
    assert capture_module.measure_machine(tmp_path) == cpu
    (again,) = load_hardware_file(capture_module.machine_path(tmp_path))
    assert again.memory_bandwidth_bytes_per_s == 2e10
