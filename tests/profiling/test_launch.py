"""Launched servers: started, recognised when they fail, and stopped whatever happens."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.profiling.client import Client
from servefit.profiling.launch import (
    LaunchedServer,
    LaunchFailedError,
    clean_up,
    fill,
    free_port,
    placeholders,
    start_failure,
)
from servefit.profiling.patience import OutOfTimeError
from tests.stub_process import STUB, Stub, run

#: A server that starts a helper in a process of its own and ignores SIGTERM, both asleep.
STUBBORN = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('up', flush=True); time.sleep(60)\n"
)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def session_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[3] == str(pid) and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def wait_until(true: Callable[[], object], seconds: float = 10.0) -> None:
    give_up_s = time.perf_counter() + seconds
    while not true():
        assert time.perf_counter() < give_up_s, "waited in vain"
        time.sleep(0.02)


def launched(tmp_path: Path, command: list[str]) -> LaunchedServer:
    return LaunchedServer(command, tmp_path / "server.log", tmp_path / "server.pid")


def test_a_server_is_started_awaited_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    server = launched(tmp_path, [sys.executable, str(STUB), str(port)])

    async def work() -> None:
        async with Client(f"http://127.0.0.1:{port}") as client:
            await server.until_healthy(client, 20.0)

    server.start()
    assert server.alive
    run(work())
    assert (tmp_path / "server.pid").exists()
    server.stop()
    assert not server.alive
    assert not (tmp_path / "server.pid").exists()
    assert str(port) in (tmp_path / "server.log").read_text()


def test_a_stubborn_server_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.profiling.launch.STOP_S", 0.3)
    server = launched(tmp_path, [sys.executable, "-c", STUBBORN])
    server.start()
    assert server._process is not None
    pid = server._process.pid
    wait_until(lambda: len(session_of(pid)) == 2)
    server.stop()
    assert session_of(pid) == []


def test_a_server_that_cannot_be_killed_is_named_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.profiling.launch.STOP_S", 0.2)
    monkeypatch.setattr("servefit.profiling.launch.KILL_S", 0.2)
    server = launched(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"])
    server.start()
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "killpg", lambda *_: None)
        deaf.setattr(os, "kill", lambda *_: None)
        for stop in (server.stop, lambda: clean_up(tmp_path / "server.pid")):
            with pytest.raises(ServefitError, match=r"does not end even by SIGKILL.*server.pid"):
                stop()
    assert (tmp_path / "server.pid").exists()
    server.stop()
    assert not (tmp_path / "server.pid").exists()


def test_the_log_is_its_owner_s_alone(tmp_path: Path) -> None:
    server = launched(tmp_path, [sys.executable, "-c", "print('key')"])
    server.start()
    server.stop()
    assert server.log.stat().st_mode & 0o777 == 0o600


def test_a_server_that_ends_at_once_is_named_with_its_cause(tmp_path: Path) -> None:
    code = "import sys; sys.exit('vllm: error: unrecognized arguments: --max-num-seq 4')"
    server = launched(tmp_path, [sys.executable, "-c", code])

    async def work() -> None:
        async with Client("http://127.0.0.1:9") as client:
            await server.until_healthy(client, 20.0)

    server.start()
    with pytest.raises(LaunchFailedError, match="status 1: unknown argument --max-num-seq 4"):
        run(work())
    server.stop()


@pytest.mark.parametrize(
    "said", ["{0}", "x" * 190 + "{0}", "error: unrecognized arguments: --key {0}"]
)
def test_the_cause_of_a_failed_start_is_told_without_the_api_key(tmp_path: Path, said: str) -> None:
    line = said.format("top-secret-key")
    server = launched(tmp_path, [sys.executable, "-c", f"import sys; sys.exit({line!r})"])

    async def work() -> None:
        async with Client("http://127.0.0.1:9", api_key="top-secret-key") as client:
            await server.until_healthy(client, 20.0)

    server.start()
    with pytest.raises(LaunchFailedError) as failure:
        run(work())
    server.stop()
    assert "***" in str(failure.value)
    assert "top-sec" not in str(failure.value)


def test_a_server_that_never_answers_is_given_up_in_time(tmp_path: Path) -> None:
    code = "import time; print('loading', flush=True); time.sleep(60)"
    server = launched(tmp_path, [sys.executable, "-c", code])

    async def work() -> None:
        async with Client("http://127.0.0.1:9") as client:
            await server.until_healthy(client, 0.5)

    server.start()
    wait_until(lambda: server.log.stat().st_size)
    with pytest.raises(
        LaunchFailedError, match=r"within 0.5 s \(no answer\): loading \(see .*server.log\)"
    ):
        run(work())
    server.stop()


async def await_health(server: LaunchedServer, url: str, *limits: float) -> None:
    async with Client(url) as client:
        await server.until_healthy(client, *limits)


@pytest.mark.parametrize(
    ("script", "page"),
    [({"health": 503}, "/health"), ({"page_faults": {"/v1/models": [503] * 99}}, "/v1/models")],
)
def test_a_server_that_still_loads_is_not_healthy(
    tmp_path: Path, stub: Stub, script: dict[str, Any], page: str
) -> None:
    """As llama.cpp does, which lists its model before it can serve it."""
    server = launched(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"])
    server.start()
    stub.script(**script)
    with pytest.raises(LaunchFailedError, match=rf"within 0.3 s \({page}: HTTP 503\)"):
        run(await_health(server, stub.url, 0.3))
    with pytest.raises(OutOfTimeError):
        run(await_health(server, stub.url, 60.0, time.perf_counter() + 0.3))
    stub.script(health=404)  # it has no such page
    run(await_health(server, stub.url, 5.0))
    server.stop()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailedError, match="no-such-program: No such file"):
        launched(tmp_path, ["no-such-program"]).start()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("ValueError: No available memory for the cache blocks. Try", "no memory is left for KV"),
        (
            "To serve at least one request with the models's max seq len (40960), (4.38 GiB KV "
            "cache is needed, which is larger than the available KV cache memory (1.0 GiB)",
            "max_model_len needs more KV cache",
        ),
        (
            "The model's max seq len (4096) is larger than the maximum number of tokens that can "
            "be stored in KV cache (27)",
            "max_model_len needs more KV cache",
        ),
        (
            "User-specified max_model_len (65536) is greater than the derived max_model_len (32)",
            "longer than the model allows",
        ),
        ("vllm: error: unrecognized arguments: --foo", "unknown argument --foo"),
        ("error: invalid argument: --foo", "unknown argument --foo"),
        ("serve: error: argument --port: expected one argument", "argument --port: expected one"),
        ("OSError: [Errno 98] Address already in use", "port is in use"),
        ("couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8", "port is in use"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "out of memory"),
        (
            "Free memory on device cuda:0 (10/22 GiB) on startup is less than desired GPU memory "
            "utilization (0.85)",
            "another process holds",
        ),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "no mem",
        ),
        ("OSError: x is not a local folder and is not a valid model identifier", "cannot be found"),
        ("ModuleNotFoundError: No module named 'vllm'", "'vllm' is not installed"),
    ],
)
def test_common_start_failures_are_recognised(line: str, cause: str) -> None:
    log = f"INFO starting\nTraceback (most recent call last):\n{line}\nINFO bye\n"
    found = start_failure(log)
    assert found is not None
    assert cause in found


def test_an_ordinary_log_is_no_failure() -> None:
    assert start_failure("INFO: Uvicorn running on http://127.0.0.1:8000\n") is None


def test_the_command_is_filled_in_without_a_shell() -> None:
    template = """serve 'my model' --seats {seats} --port {port} --json '{"a": {"b": 1}}'"""
    assert placeholders(template) == {"seats", "port"}
    assert fill(template, {"seats": "4; rm -rf x", "port": "80"}) == [
        "serve",
        "my model",
        "--seats",
        "4; rm -rf x",
        "--port",
        "80",
        "--json",
        '{"a": {"b": 1}}',
    ]
    with pytest.raises(ServefitError, match="no value for it: give --set seats=V1,V2"):
        fill(template, {"port": "80"})
    with pytest.raises(ServefitError, match="quotation"):
        fill("serve 'x", {})


LAUNCHER = (
    "import sys, time; from pathlib import Path\n"
    "from servefit.profiling.launch import LaunchedServer\n"
    "s = LaunchedServer([sys.executable, '-c', sys.argv[2]], Path(sys.argv[1], 'log'),\n"
    "                   Path(sys.argv[1], 'pid'))\n"
    "s.start(); print(s._process.pid, flush=True); time.sleep(60)\n"
)


def launcher(tmp_path: Path, code: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(tmp_path), code], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.stdout.close()
    return parent, pid


def test_the_server_ends_when_servefit_is_killed(tmp_path: Path) -> None:
    parent, pid = launcher(tmp_path, "import time; time.sleep(60)")
    assert running(pid)
    parent.kill()
    parent.wait()
    wait_until(lambda: not running(pid))


def test_what_survives_a_kill_is_stopped_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.profiling.launch.STOP_S", 0.3)
    parent, pid = launcher(tmp_path, STUBBORN)
    wait_until(lambda: len(session_of(pid)) == 2)
    parent.kill()
    parent.wait()
    time.sleep(0.1)
    assert running(pid)  # it ignores the parent-death signal
    os.kill(pid, signal.SIGKILL)  # even with its leader gone
    wait_until(lambda: not running(pid))
    assert len(session_of(pid)) == 1
    assert clean_up(tmp_path / "pid")
    assert session_of(pid) == []
    assert not clean_up(tmp_path / "pid")


def test_a_reused_process_number_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True
    )
    (tmp_path / "pid").write_text(f'{{"pid": {bystander.pid}, "started": "1"}}')
    assert not clean_up(tmp_path / "pid")
    assert running(bystander.pid)
    bystander.kill()
    bystander.wait()


def test_a_damaged_pid_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text("junk")
    with pytest.raises(ServefitError, match="is damaged"):
        clean_up(tmp_path / "pid")


def test_a_server_whose_owner_lives_is_left_alone(tmp_path: Path) -> None:
    parent, pid = launcher(tmp_path, "import time; time.sleep(60)")
    wait_until(lambda: (tmp_path / "pid").exists())
    with pytest.raises(ServefitError, match=rf"process {parent.pid}, another servefit, is meas"):
        clean_up(tmp_path / "pid")
    assert running(pid)
    assert (tmp_path / "pid").exists()
    parent.kill()
    parent.wait()
    wait_until(lambda: not running(pid))


@pytest.mark.parametrize("where", ["none/server.log", "none/server.pid"])
def test_what_cannot_be_written_down_is_not_left_running(tmp_path: Path, where: str) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    log, pid_file = [
        tmp_path / (where if where.endswith(name) else f"server.{name}") for name in ("log", "pid")
    ]
    server = LaunchedServer(command, log, pid_file)
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def noted(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **kwargs))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", noted)
        with pytest.raises(ServefitError, match=rf"{where}: cannot be written \(No such file"):
            server.start()
    assert not server.alive
    assert all(process.poll() is not None for process in started)
    assert len(started) == ("pid" in where)


def test_a_full_disk_leaves_no_half_of_a_pid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, text: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    server = launched(tmp_path, [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ServefitError, match="No space left on device"):
        server.start()
    assert [p.name for p in tmp_path.iterdir()] == ["server.log"]
    assert not clean_up(tmp_path / "server.pid")
