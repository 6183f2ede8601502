"""What the load generator costs, and how far its times are from the truth, by load.

A stub server in a process of its own writes down when it truly received and sent everything. With
``--vllm PYTHON --tokenizer FOLDER``, the interpreter of an environment with vLLM and any model
folder, `vllm bench serve` measures the same server in alternation. Its CPU time is that of its
process less that of the same command with two requests, which is start-up.

Reports numbers; never a pass/fail test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from servefit.profiling.client import Client
from servefit.profiling.discover import discover
from servefit.profiling.lag import LagMonitor, no_garbage_collection
from servefit.profiling.lengths import Length, draw_asks
from servefit.profiling.load import Load, raise_file_limit
from servefit.profiling.probe import make_prompts, probe
from servefit.profiling.record import Record

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.stub_process import Stub, start_stub, stop_stub

LOADS = (1, 64, 256)
INPUT, OUTPUT, STEP_S, SECONDS, ROUNDS = 128, 64, 0.02, 6.0, 3
COLUMNS = ("CPU ms / request", "TTFT error", "ITL error", "E2E error", "lag p99 ms")


@dataclass
class Cost:
    """What one run cost and how far it was off; errors are relative, of means."""

    cpu_ms: float | None
    ttft: float
    itl: float
    e2e: float
    lag_ms: float | None = None

    def cells(self) -> list[str]:
        lag = "" if self.lag_ms is None else f"{self.lag_ms:.1f}"
        errors = [f"{error:+.2%}" for error in (self.ttft, self.itl, self.e2e)]
        cpu = "" if self.cpu_ms is None else f"{self.cpu_ms:.2f}"
        return [cpu, *errors, lag]


def truth(log: Sequence[dict[str, Any]]) -> tuple[float, float, float]:
    """Mean TTFT, ITL and E2E of the answers in the server's log."""
    done = [r for r in log if r["outcome"] == "done" and len(r["chunks"]) > 1]
    first = [r["chunks"][0][0] - r["received"] for r in done]
    last = [r["chunks"][-1][0] - r["received"] for r in done]
    gaps = sum(r["chunks"][-1][0] - r["chunks"][0][0] for r in done)
    return (
        statistics.mean(first),
        gaps / sum(len(r["chunks"]) - 1 for r in done),
        statistics.mean(last),
    )


def against(measured: tuple[float, float, float], stub: Stub, skip: int) -> list[float]:
    """Relative errors of measured means."""
    pairs = zip(measured, truth(stub.log()[skip:]), strict=True)
    return [ours / theirs - 1 for ours, theirs in pairs]


def servefit_run(stub: Stub, concurrency: int) -> Cost:
    """A closed loop of servefit's, all of whose requests are answered."""
    stub.script(step_s=STEP_S)

    async def work() -> tuple[list[Record], float, float]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            load = Load(client, server, await make_prompts(client, server, random.Random()))
            lag = LagMonitor()
            watching = asyncio.ensure_future(lag.run())
            asks = draw_asks(Length(str(INPUT)), Length(str(OUTPUT)), None, max_tokens=None, seed=1)
            cpu_s = time.process_time()
            running = asyncio.ensure_future(load.closed(asks, concurrency, random.Random(1)))
            await asyncio.sleep(SECONDS)
            load.stopping = True
            await running
            cpu_s = time.process_time() - cpu_s
            watching.cancel()
            warm_s = max(r.finished_s or 0.0 for r in load.records if r.warmup)
            lags = lag.between(warm_s, time.perf_counter())
            return load.records, cpu_s, lags[int(0.99 * len(lags))]

    with (
        no_garbage_collection(),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        records, cpu_s, lag_s = runner.run(work())
    # The first of each slot opens its connection, all at once; a measured point leaves them out.
    several = [r for r in records if len(r.chunk_s) > 1 and not r.warmup]
    measured = (
        statistics.mean(r.ttft_s or 0.0 for r in several),
        sum(r.chunk_s[-1] - r.chunk_s[0] for r in several)
        / sum(len(r.chunk_s) - 1 for r in several),
        statistics.mean(r.e2e_s or 0.0 for r in several),
    )
    errors = against(measured, stub, skip=1 + concurrency)  # the probe, the warm-up
    return Cost(cpu_s / len(records) * 1e3, *errors, lag_ms=lag_s * 1e3)


def vllm_run(stub: Stub, concurrency: int, python: Path, tokenizer: Path) -> Cost:
    """The same by `vllm bench serve`."""
    requests = max(8, int(concurrency * SECONDS / (OUTPUT * STEP_S)))
    start_s = _vllm_cpu_s(stub, 1, 2, python, tokenizer)[0]
    stub.script(step_s=STEP_S)
    cpu_s, result = _vllm_cpu_s(stub, concurrency, requests, python, tokenizer)
    # As above, the first of each slot, which opens its connection, is left out.
    ttfts, itls = result["ttfts"][concurrency:], result["itls"][concurrency:]
    measured = (
        statistics.mean(ttfts),
        statistics.mean(gap for gaps in itls for gap in gaps),
        statistics.mean(ttft + sum(gaps) for ttft, gaps in zip(ttfts, itls, strict=True)),
    )
    errors = against(measured, stub, skip=1 + concurrency)  # its trial request comes first
    told = cpu_s > 1.02 * start_s  # else the requests cost less than start-up varies
    return Cost((cpu_s - start_s) / requests * 1e3 if told else None, *errors)


def _vllm_cpu_s(
    stub: Stub, concurrency: int, requests: int, python: Path, tokenizer: Path
) -> tuple[float, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "--backend": "openai",
            "--base-url": stub.url,
            "--model": "stub-model",
            "--tokenizer": str(tokenizer),
            "--dataset-name": "random",
            "--random-input-len": INPUT,
            "--random-output-len": OUTPUT,
            "--max-concurrency": concurrency,
            "--num-prompts": requests,
            "--result-dir": folder,
        }
        words = [str(word) for pair in options.items() for word in pair]
        flags = ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [str(python.with_name("vllm")), "bench", "serve", *words, *flags]
        subprocess.run(command, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        (file,) = Path(folder).iterdir()
        result: dict[str, Any] = json.loads(file.read_text())
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", type=Path, metavar="PYTHON")
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    raise_file_limit()
    stub = start_stub()
    print(f"{'in flight':>9}  {'client':<16}" + "".join(f"{c:>18}" for c in COLUMNS))
    try:
        for concurrency in LOADS:
            for _ in range(ROUNDS):
                costs = {"servefit": servefit_run(stub, concurrency)}
                if given.vllm and given.tokenizer:
                    costs["vllm bench"] = vllm_run(stub, concurrency, given.vllm, given.tokenizer)
                for client, cost in costs.items():
                    cells = "".join(f"{cell:>18}" for cell in cost.cells())
                    print(f"{concurrency:>9}  {client:<16}{cells}", flush=True)
    finally:
        stop_stub(stub)


if __name__ == "__main__":
    main()
