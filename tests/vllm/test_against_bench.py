"""servefit beside ``vllm bench serve`` on the same server and load, in alternation."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scipy.special import stdtrit

from tests.vllm.conftest import SEATS
from tests.vllm.tiny import BenchServe, servefit

pytestmark = pytest.mark.vllm
ROUNDS = 4
#: Lengths are spread, since requests of one length end together for as long as a benchmark lasts:
#: a load of its own, which servefit avoids by starting requests out of step.
INPUT, OUTPUT, SPREAD = 64, 32, 0.5
#: Requests of one benchmark, at least 16 for each in flight: its ramp and its drain, which it
#: counts, are then a few per cent.
MIN_PROMPTS, TURNOVERS = 240, 16
#: Differences that are not noise, as |log ratio|. The benchmark counts its ramp and its drain, and
#: on two cores its client, which takes more CPU time, slows the server that it measures.
ALLOWED = {"tokens_per_s": 0.25, "tpot_s": 0.25, "ttft_s": 0.35}
#: Where the ratio is not known within this factor, the machine is too busy to tell.
MOST_NOISE = 1.5
#: Six comparisons are made: each is to fail by chance once in a hundred times at most.
CONFIDENCE = 0.99


@pytest.fixture(scope="module")
def bench_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchServe]:
    with BenchServe(tmp_path_factory.mktemp("bench")) as bench:
        yield bench


@pytest.mark.parametrize("in_flight", [SEATS // 2, 2 * SEATS])
def test_throughput_ttft_and_tpot_agree_within_the_noise(
    bench_process: BenchServe, url: str, model: Path, tmp_path: Path, in_flight: int
) -> None:
    pairs = []
    for turn in range(ROUNDS):
        pair = [
            lambda: bench(bench_process, url, model, in_flight),
            lambda: ours(url, tmp_path, in_flight, turn),  # noqa: B023
        ]
        # Who goes first alternates, so that a slow drift of the machine favours neither.
        results = [measure() for measure in (pair if turn % 2 == 0 else reversed(pair))]
        pairs.append(results if turn % 2 == 0 else results[::-1])
    noisy = []
    for name, allowed in ALLOWED.items():
        ratios = [mine[name] / theirs[name] for theirs, mine in pairs]
        ratio, factor = mean_ratio(ratios)
        print(
            f"{in_flight} in flight, {name}: servefit / vllm bench serve = {ratio:.3f} "
            f"({CONFIDENCE:.0%} interval: {ratio / factor:.3f} to {ratio * factor:.3f}); servefit "
            f"{[round(mine[name], 4) for _, mine in pairs]}, vllm bench serve "
            f"{[round(theirs[name], 4) for theirs, _ in pairs]}"
        )
        assert abs(math.log(ratio)) <= allowed + math.log(factor), name
        if factor > MOST_NOISE:
            noisy.append(f"{name} within a factor of {factor:.2f}")
    if noisy:
        pytest.skip(f"the machine is too busy to compare: {', '.join(noisy)}")


def mean_ratio(ratios: Sequence[float]) -> tuple[float, float]:
    """Geometric mean of the ratios, and the factor of its interval (Student)."""
    logs = [math.log(ratio) for ratio in ratios]
    quantile = stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.fmean(logs)), math.exp(quantile * error)


def bench(process: BenchServe, url: str, model: Path, in_flight: int) -> dict[str, float]:
    found = process.run(
        url,
        model,
        concurrency=in_flight,
        input_tokens=INPUT,
        output_tokens=OUTPUT,
        spread=SPREAD,
        num_prompts=max(MIN_PROMPTS, TURNOVERS * in_flight),
    )
    return {
        "tokens_per_s": found["total_token_throughput"],
        "ttft_s": found["mean_ttft_ms"] / 1e3,
        "tpot_s": found["mean_tpot_ms"] / 1e3,
    }


def ours(url: str, cwd: Path, in_flight: int, turn: int) -> dict[str, float]:
    lengths = [f"uniform:{n * (1 - SPREAD):.0f}:{n * (1 + SPREAD):.0f}" for n in (INPUT, OUTPUT)]
    (row,) = json.loads(
        servefit(
            *("profile", url, "--batch", in_flight, "--max-num-seqs", SEATS, "--json"),
            *("--input-tokens", lengths[0], "--output-tokens", lengths[1]),
            *("--precision", 0.03, "--max-point-time", 8, "-o", f"{in_flight}-{turn}.jsonl"),
            *("--seed", turn, "--prompts", "text"),  # as the benchmark's
            cwd=cwd,
        )
    )
    return {
        "tokens_per_s": row["total_tokens_per_s"],
        "ttft_s": row["ttft_with_queue_mean_s"],
        "tpot_s": row["tpot_mean_s"],
    }
