"""Starting the server to be measured, and stopping it whatever happens."""

from __future__ import annotations

import asyncio
import ctypes
import json
import math
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from servefit.errors import ServefitError
from servefit.profiling.client import Client
from servefit.profiling.patience import OutOfTimeError

#: What a server's log says when it does not start -> the cause. First match wins, most telling
#: first; of vLLM, SGLang, llama.cpp and the libraries under them.
FAILURES: tuple[tuple[str, str], ...] = (
    (
        r"larger than the available KV cache memory"
        r"|larger than the maximum number of tokens that can be stored in KV cache",
        "max_model_len needs more KV cache than there is: lower it, or give the engine more memory",
    ),
    (
        r"max_model_len \(\d+\) is greater than the derived max_model_len",
        "max_model_len is longer than the model allows",
    ),
    (
        r"No available memory for the cache blocks|Available KV cache memory: -"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
        "no memory is left for KV-cache blocks: give the engine more, or use a smaller model",
    ),
    (
        r"Free memory on device .*is less than desired GPU memory utilization",
        "another process holds the GPU's memory",
    ),
    (r"OutOfMemoryError|out of memory", "out of memory while the model was loaded"),
    (r"unrecognized arguments?: (?P<what>.+)", "unknown argument {what}"),
    (r"(?:invalid|unknown) argument: (?P<what>.+)", "unknown argument {what}"),
    (r"error: (?P<what>argument .+)", "{what}"),
    (r"[Aa]ddress already in use|couldn't bind HTTP server socket", "the port is in use"),
    (
        r"is not a local folder and is not a valid model identifier|Repository Not Found"
        r"|failed to load model",
        "the model cannot be found or read",
    ),
    (r"No module named (?P<what>\S+)", "the Python module {what} is not installed"),
)
LOG_TAIL_BYTES = 65536
POLL_S = 0.25
#: Time to end after SIGTERM, and after the SIGKILL that follows.
STOP_S, KILL_S = 20.0, 5.0
#: prctl(2): the signal that a process gets when its parent dies.
PR_SET_PDEATHSIG = 1


def placeholders(template: str) -> set[str]:
    """Names in braces in a launch command."""
    return set(re.findall(r"\{(\w+)\}", template))


def fill(template: str, values: Mapping[str, str]) -> list[str]:
    """The command's words, with ``{name}`` replaced.

    Raises:
        ServefitError: a name has no value, or the quoting is not closed.
    """
    missing = sorted(placeholders(template) - set(values))
    if missing:
        raise ServefitError(
            f"--launch has {{{missing[0]}}} but no value for it: give --set {missing[0]}=V1,V2"
        )
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise ServefitError(f"--launch {template}: {error}") from None
    if not words:
        raise ServefitError("--launch is empty: give the server's command")
    return [re.sub(r"\{(\w+)\}", lambda m: values[m[1]], word) for word in words]


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class LaunchFailedError(Exception):
    """A server did not start; the message names the cause."""


class LaunchedServer:
    """A server process and everything it starts.

    It leads a session of its own, which is stopped as a whole. Should servefit be killed, the
    kernel tells the server to end (parent-death signal, Linux); what still survives is named by
    the pid file and stopped by the next run (`clean_up`).

    Args:
        command: words of the command.
        log: its output is appended here.
        pid_file: says what runs.
    """

    def __init__(self, command: Sequence[str], log: Path, pid_file: Path) -> None:
        """Nothing is started yet."""
        self.command, self.log, self.pid_file = command, log, pid_file
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the process; it is stopped again if the pid file cannot be written.

        Raises:
            LaunchFailedError: its program is not to be found.
            ServefitError: the log or the pid file cannot be written.
        """
        parent = os.getpid()
        with self._open_log() as log:
            self._log_start = log.tell()
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: _die_with(parent),
                )
            except OSError as error:
                raise LaunchFailedError(f"{self.command[0]}: {error.strerror}") from None
        try:
            _note(self.pid_file, self._process.pid)
        except OSError as error:
            self.stop()
            raise ServefitError(
                f"{self.pid_file}: cannot be written ({error.strerror}): the server that was "
                "launched is stopped"
            ) from None

    def _open_log(self) -> BinaryIO:
        try:
            return open(self.log, "ab", opener=_for_the_owner)
        except OSError as error:
            raise ServefitError(f"{self.log}: cannot be written ({error.strerror})") from None

    @property
    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self._process is not None and self._process.poll() is None

    async def until_healthy(
        self, client: Client, timeout_s: float, give_up_s: float = math.inf
    ) -> None:
        """Wait until the server lists its model and does not say that it is still loading.

        Raises:
            LaunchFailedError: it ended, or did not answer in time; the message names the cause.
            OutOfTimeError: ``give_up_s``, by ``time.perf_counter``, came first.
        """
        late_s = time.perf_counter() + timeout_s
        while self.alive:
            why = await _not_ready(client)
            if why is None:
                return
            if time.perf_counter() >= give_up_s:
                raise OutOfTimeError
            if time.perf_counter() >= late_s:
                raise LaunchFailedError(
                    f"not healthy within {timeout_s:g} s ({why}): {self.cause(client)}"
                )
            await asyncio.sleep(POLL_S)
        raise self.ended(client)

    def ended(self, client: Client) -> LaunchFailedError:
        """That the server has ended, and why."""
        code = self._process.returncode if self._process is not None else None
        return LaunchFailedError(f"the server ended with status {code}: {self.cause(client)}")

    def cause(self, client: Client) -> str:
        """Why it did not start, as its log tells; the log may hold the API key, this does not."""
        with self.log.open("rb") as log:
            start = max(self._log_start, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES)
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
        if start > self._log_start:  # the first line is cut, and may start within the key
            text = text.partition("\n")[2]
        text = client.without_key(text)
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        return start_failure(text) or f"{last[:200]} (see {self.log})".strip()

    def stop(self) -> None:
        """Stop the process and all of its session: SIGTERM, then SIGKILL.

        Raises:
            ServefitError: it is not gone `KILL_S` after SIGKILL; the pid file still names it.
        """
        if self._process is not None:
            _stop_session(self._process.pid, self.pid_file, self._process)
            self._process = None
        self.pid_file.unlink(missing_ok=True)


async def _not_ready(client: Client) -> str | None:
    """Why a server cannot be measured yet: it must list its model, and not say that it loads it.

    llama.cpp lists its model while it still loads it, which only ``/health`` tells; a server
    without that page is taken at its list.
    """
    models = await client.query("/v1/models", timeout_s=5.0)
    if models is None:
        return "no answer"
    if models.status not in (200, 401, 403, 404):
        return f"/v1/models: HTTP {models.status}"
    health = await client.query("/health", timeout_s=5.0)
    if health is None:
        return "no answer from /health"
    return "/health: HTTP 503" if health.status == 503 else None


def start_failure(log: str) -> str | None:
    """The cause of a failed start, from a server's log; ``None`` if it is none of `FAILURES`."""
    for pattern, cause in FAILURES:
        match = re.search(pattern, log)
        if match is not None:
            what = match.groupdict().get("what", "")
            return cause.format(what=what.strip()[:200])
    return None


def _note(pid_file: Path, pid: int) -> None:
    """Write down what runs, and who started it; a full disk leaves no half of it."""
    owner = os.getpid()
    noted = {"pid": pid, "started": _started(pid)}
    noted |= {"servefit": owner, "servefit_started": _started(owner)}
    beside = pid_file.with_name(f"{pid_file.name}.{owner}.tmp")
    try:
        beside.write_text(json.dumps(noted))
        os.replace(beside, pid_file)
    except OSError:
        with suppress(OSError):
            beside.unlink()
        raise


def clean_up(pid_file: Path) -> bool:
    """Stop a server that a killed servefit has left behind; whether there was one.

    Raises:
        ServefitError: the servefit that started it still runs, and so the server is left alone;
            the file is damaged; the server does not end.
    """
    try:
        noted = json.loads(pid_file.read_text())
        pid, started = int(noted["pid"]), noted["started"]
        owner, owner_started = int(noted.get("servefit", 0)), noted.get("servefit_started")
    except FileNotFoundError:
        return False
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise ServefitError(
            f"{pid_file}: is damaged: look for a server left running, then delete it"
        ) from None
    if owner not in (0, os.getpid()) and owner_started and _started(owner) == owner_started:
        raise ServefitError(
            f"{pid_file}: process {owner}, another servefit, is measuring the server that it "
            "launched: it is left alone: wait for it, or write to another file"
        )
    now = _started(pid)
    # The number may belong to another process by now; a session outlives its leader, though, and
    # while it does its number is not given away.
    ours = now == started if now is not None else bool(_session(pid))
    if ours:
        _stop_session(pid, pid_file)
    pid_file.unlink(missing_ok=True)
    return ours


def _die_with(parent: int) -> None:
    """In the child: ask the kernel for SIGTERM when the parent ends."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended in between
        os._exit(1)


def _for_the_owner(path: str, flags: int) -> int:
    """Opens a file that nobody else may read, if it is new: a server may print its secrets."""
    return os.open(path, flags, 0o600)


def _stop_session(
    leader: int, pid_file: Path, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Signal a session until nothing of it is left; ``process`` is its leader, if it is ours."""
    for sig, wait_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, sig)
        for pid in _session(leader):  # those that left the leader's group
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sig)
        give_up_s = time.perf_counter() + wait_s
        while time.perf_counter() < give_up_s:
            reaped = process is None or process.poll() is not None
            if reaped and not _session(leader):
                return
            time.sleep(0.05)
    raise ServefitError(
        f"process {leader}, the launched server, does not end even by SIGKILL (it hangs in the "
        f"kernel, or is not ours): end it by hand; {pid_file} names it for the next run"
    )


def _session(leader: int) -> list[int]:
    """Living processes of a session, from /proc; none where there is no /proc."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(entry)
        if fields and fields[3] == str(leader) and fields[0] not in ("Z", "X"):
            pids.append(int(entry.parent.name))
    return pids


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; ``None`` if it does not run."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return fields[19] if fields and fields[0] not in ("Z", "X") else None


def _stat(path: Path) -> list[str]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return []
