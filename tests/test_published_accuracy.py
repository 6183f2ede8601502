"""SLIM on the published H100 measurements: the numbers of docs/accuracy.md, pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from servefit import api
from servefit.evaluation import evaluate
from servefit.laws import get_law
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable


@pytest.fixture(scope="module")
def table(servefit_data: Path) -> RunTable:
    runs = api.read_runs(servefit_data / "data" / "h100_memory_gap" / "runs.csv")
    return runs.filter(parse_selections(["campaign=fixed_lengths"]).mask(runs.frame))


def score(table: RunTable, train: list[str], test: list[str]) -> tuple[float, float, int]:
    result = evaluate(
        table,
        get_law("slim"),
        train=parse_selections([*train, "preemptions=0"]).mask(table.frame),
        test=parse_selections(test).mask(table.frame),
    )
    assert result.throughput_mape_pct is not None
    assert result.e2e_mape_pct is not None
    return result.throughput_mape_pct, result.e2e_mape_pct, result.n_test


def test_every_published_row_is_sound(table: RunTable) -> None:
    assert table.refused == ()


@pytest.mark.parametrize(
    ("train", "test", "throughput", "e2e", "n_test"),
    [
        (["max_num_seqs=1,4,8"], ["max_num_seqs!=1,4,8"], 11.26, 10.97, 60),
        (
            ["model=facebook/opt-1.3b,facebook/opt-2.7b", "output_tokens=390"],
            ["model=meta-llama/Llama-2-7b-hf", "output_tokens=390"],
            9.23,
            10.79,
            10,
        ),
        (["output_tokens=130,260"], ["output_tokens=390"], 8.17, 9.20, 30),
    ],
    ids=["same curve", "model", "output length"],
)
def test_slim_reaches_its_published_neighbourhood(
    table: RunTable, train: list[str], test: list[str], throughput: float, e2e: float, n_test: int
) -> None:
    found = score(table, train, test)
    assert found[0] == pytest.approx(throughput, abs=0.05)
    assert found[1] == pytest.approx(e2e, abs=0.05)
    assert found[2] == n_test
