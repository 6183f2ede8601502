"""docs/evaluation.md says what the study finds on the published runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from servefit import api
from servefit.laws import get_law
from servefit.study.bench import bench_of
from servefit.study.derived import __doc__ as columns
from servefit.study.settings import load_study
from servefit.study.splits import resolve

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def documented() -> dict[tuple[str, str], tuple[float, float]]:
    """Setting and law -> throughput and E2E MAPE, from the page's first table."""
    found: dict[tuple[str, str], tuple[float, float]] = {}
    setting = ""
    table = PAGE.read_text(encoding="utf-8").split("| setting | law |", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines()[2:]:
        name, law, throughput, e2e = [cell.strip() for cell in line.split("|")[1:5]]
        setting = re.sub(r" \(.*\)", "", name) or setting
        if e2e:
            found[setting, law] = float(throughput), float(e2e)
    return found


@pytest.mark.parametrize("law", ["slim", "llmvisor", "imai", "imai-roofline"])
def test_errors_are_as_documented(servefit_data: Path, law: str) -> None:
    study, _ = load_study("paper")
    runs = api.read_runs(servefit_data / "data" / "h100_memory_gap" / "runs.csv")
    bench = bench_of(runs, study.where)
    splits = resolve(study.setting, bench.table)
    rows = {setting: pair for (setting, name), pair in documented().items() if name == law}
    assert len(rows) == 4
    for setting, (throughput, e2e) in rows.items():
        score = bench.score(get_law(law), splits[setting])
        assert score.throughput_mape_pct == pytest.approx(throughput, abs=0.06)
        assert score.e2e_mape_pct == pytest.approx(e2e, abs=0.06)


def test_every_derived_column_is_documented() -> None:
    assert columns is not None
    table = [line for line in columns.splitlines() if line.startswith("|")]
    assert len(table) > 15
    page = PAGE.read_text(encoding="utf-8")
    for line in table:
        assert line in page


def test_every_figure_on_the_page_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    figures = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert len(figures) == 8
    for name in figures:
        assert (PAGE.parent / name).is_file()
