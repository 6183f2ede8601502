"""A tiny model for vLLM on the CPU, a server of it, and the commands that measure it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

BIN = Path(sys.executable).parent
VOCAB_SIZE = 8192
#: One thread for the model: a second would wait for the client's and the server's own work.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "KMP_BLOCKTIME": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
#: Options of ``vllm serve`` for the tiny model.
SERVE_OPTIONS = (
    *("--host", "127.0.0.1", "--load-format", "dummy", "--dtype", "float32", "--enforce-eager"),
    "--no-enable-prefix-caching",
)
PR_SET_PDEATHSIG = 1
START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 20.0


def environment() -> dict[str, str]:
    """This process's environment with vLLM's settings for a small CPU."""
    return {**os.environ, **ENVIRONMENT}


def write_model(folder: Path, hidden_size: int = 256, num_layers: int = 4) -> Path:
    """Write an OPT config and a tokenizer of one word a token; weights are vLLM's dummies."""
    folder.mkdir()
    config = {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "hidden_size": hidden_size,
        "word_embed_proj_dim": hidden_size,
        "ffn_dim": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // 64,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 2048,
        "do_layer_norm_before": True,
        "activation_function": "relu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
    }
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {f"w{i}": i for i in range(VOCAB_SIZE)},
            "unk_token": "w0",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "w0",
        "pad_token": "w1",
        "bos_token": "w2",
        "eos_token": "w2",
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


@contextmanager
def serving(model: Path, log: Path, *arguments: str) -> Iterator[str]:
    """vLLM's server on a free port, healthy; its address. Stopped with all it started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(BIN / "vllm"), "serve", str(model), "--port", str(port), *SERVE_OPTIONS]
    command += arguments
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        _wait_until_healthy(server, url, log)
        yield url
    finally:
        _stop(server)


def die_with_parent() -> None:
    """In the child: ask the kernel for SIGTERM when the tests end, however they do."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_until_healthy(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_s and server.poll() is None:
        with suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        time.sleep(0.5)
    tail = log.read_text(errors="replace")[-3000:]
    raise RuntimeError(f"the server did not start (status {server.poll()}):\n{tail}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server's session: first as it would be asked to, then whatever is left."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def servefit(*arguments: object, cwd: Path) -> str:
    """Run servefit as a user would; its stdout. Fails with its stderr."""
    done = run_servefit(*arguments, cwd=cwd)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def run_servefit(
    *arguments: object, cwd: Path, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """Run servefit as a user would, whatever comes of it."""
    command = [str(BIN / "servefit"), *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout_s
    )


class BenchServe:
    """``vllm bench serve``, many times in one process: importing vLLM takes it 15 s.

    A context manager; each `run` is the command's own function with the command's own arguments.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        self._log = (self.folder / "bench.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("bench_loop.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment(),
            text=True,
            preexec_fn=die_with_parent,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def run(
        self,
        url: str,
        model: Path,
        *,
        concurrency: int,
        input_tokens: int,
        output_tokens: int,
        spread: float,
        num_prompts: int,
    ) -> dict[str, Any]:
        """What it measures of a load: its result file.

        Lengths are uniform from (1 - spread) to (1 + spread) times their means.
        """
        result = self.folder / "bench.json"
        options = ["--backend", "openai", "--base-url", url, "--model", str(model)]
        options += ["--dataset-name", "random", "--ignore-eos", "--disable-tqdm"]
        options += ["--random-input-len", str(input_tokens)]
        options += ["--random-output-len", str(output_tokens)]
        options += ["--random-range-ratio", str(spread)]
        options += ["--num-prompts", str(num_prompts), "--max-concurrency", str(concurrency)]
        options += ["--save-result", "--result-filename", str(result)]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) != "done\n":
            assert line, f"vllm bench serve ended: see {self._log.name}"
        measured: dict[str, Any] = json.loads(result.read_text())
        assert measured["completed"] == num_prompts
        return measured
