"""The whole command on invented runs: what it writes is complete, sound and the same every time."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from servefit.cli.study import command
from servefit.errors import ServefitError
from servefit.runs.table import write_table
from servefit.study.tables import Column, Table

from .conftest import table

STUDY = """
title = "Invented"
where = ["preempted=false"]
laws = ["slim", "imai"]
baselines = ["imai"]

[[setting]]
name = "Output length"
paper = "Output length"
where = ["output_lengths=2.."]
train = ["output_rank=2.."]
test = ["output_rank=1"]

[[setting]]
name = "Input length"
train = ["input_rank=2.."]
test = ["input_rank=1", "input_lengths=2.."]

[ablation]
settings = ["Output length"]

[figures]
held_out = ["Input length", "Output length"]
estimators = "Output length"
carried = ["Output length"]

[bca]
slo_multiples = [3, 1.5]
epsilons = [0.1, 0.3]
[[bca.target]]
name = "Longest"
where = ["output_rank=1"]
same = ["series", "model", "input_length"]
grow = "output_length"

[economy]
laws = ["slim"]
counts = [2, 8]
repeats = 1
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> Path:
    """A folder with the runs and the study."""
    folder = tmp_path_factory.mktemp("study")
    write_table(table(rows), folder / "runs.csv")
    (folder / "study.toml").write_text(STUDY, encoding="utf-8")
    return folder


def invoke(folder: Path, *options: str, study: str = "study.toml") -> str:
    arguments = [str(folder / study), "--runs", str(folder / "runs.csv"), *options]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def made(files: Path) -> dict[str, Any]:
    """What one run with figures prints."""
    document: dict[str, Any] = json.loads(invoke(files, "-o", str(files / "out"), "--json"))
    return document


def test_tables_are_written_as_markdown_csv_and_json(files: Path, made: dict[str, Any]) -> None:
    tables = list((files / "out" / "tables").glob("*.csv"))
    assert {path.stem for path in tables} == set(made["tables"])
    for path in tables:
        with path.open(encoding="utf-8") as stream:
            lines = list(csv.reader(stream))
        document = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        assert len(lines) == len(document["rows"]) + 1
        assert not document["rows"] or lines[0] == list(document["rows"][0])
        assert path.with_suffix(".md").exists()


def test_the_report_says_what_does_not_exist(files: Path, made: dict[str, Any]) -> None:
    report = (files / "out" / "report.md").read_text(encoding="utf-8")
    assert "Input length: does not exist on these runs" in report
    for figure in (files / "out" / "figures").glob("*.svg"):
        assert f"(figures/{figure.name})" in report
    assert made["seconds"] > 0


def test_the_folder_says_what_it_was_made_of(files: Path, made: dict[str, Any]) -> None:
    assert "study.json" in made["files"]
    of = json.loads((files / "out" / "study.json").read_text(encoding="utf-8"))
    assert of["study"] == STUDY
    assert of["rows"] == 72
    assert len(of["observations"]) == len(of["runs"]["runs.csv"]) == 64
    assert of["options"] == {"where": [], "batch_from": "mean_batch", "gpu": None}


def test_a_second_run_writes_the_same_bytes(files: Path, made: dict[str, Any]) -> None:
    again = files / "again"
    invoke(files, "-o", str(again), "--no-figures")
    assert not (again / "index.html").exists()
    names = [name for name in made["files"] if name.startswith(("tables/", "study.json"))]
    assert len(names) > 20
    for name in names:
        assert (again / name).read_bytes() == (files / "out" / name).read_bytes(), name


def test_every_figure_is_a_png_and_an_svg(files: Path, made: dict[str, Any]) -> None:
    figures = files / "out" / "figures"
    names = {path.stem for path in figures.glob("*.png")}
    assert names == {path.stem for path in figures.glob("*.svg")}
    assert names >= {
        "figure_01_models",
        "figure_09_held_out",
        "figure_10_estimators",
        "figure_12_sensitivity",
        "figure_economy",
    }
    for path in figures.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 300_000


def test_the_page_needs_nothing_from_outside(files: Path, made: dict[str, Any]) -> None:
    page = (files / "out" / "index.html").read_text(encoding="utf-8")
    assert len(page) < 3_000_000
    assert page.count("</script>") == 2
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link|img)\b|https?://", outside)
    for path in (files / "out" / "figures").glob("*.png"):
        assert f'id="{path.stem}"' in page


def test_the_economy_needs_no_section_of_decisions(files: Path) -> None:
    start, end = STUDY.index("[bca]"), STUDY.index("[economy]")
    (files / "economy.toml").write_text(STUDY[:start] + STUDY[end:], encoding="utf-8")
    invoke(files, "-o", str(files / "e"), "--no-figures", study="economy.toml")
    found = json.loads((files / "e" / "tables" / "economy.json").read_text(encoding="utf-8"))
    assert found["rows"][-1]["choice"] == "all"
    assert found["rows"][-1]["good_decisions_pct"] is not None
    assert not (files / "e" / "tables" / "table_5_decisions.json").exists()


def test_mistakes_are_one_line(files: Path) -> None:
    with pytest.raises(ServefitError, match="is a file: give a folder"):
        invoke(files, "-o", str(files / "runs.csv"))
    text = STUDY.replace("output_rank=2..", "outputrank=2..")
    (files / "wrong.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ServefitError, match="there is no column"):
        invoke(files, "-o", str(files / "o"), "--no-figures", study="wrong.toml")
    with pytest.raises(ServefitError, match="--runs is missing"):
        CliRunner().invoke(command, ["paper", "-o", "o"], catch_exceptions=False)


def test_cells_are_escaped_and_unknown_values_are_empty() -> None:
    columns = (Column("name", "name"), Column("value", "value", 1, "none"))
    rows = ({"name": "a|b", "value": float("nan")}, {"name": "c", "value": 1234.56})
    made = Table("t", "Title", columns, rows)
    assert "| a\\|b | none |" in made.markdown()
    assert "| c | 1,234.6 |" in made.markdown()
    assert made.csv().splitlines() == ["name,value", "a|b,", "c,1234.56"]
    assert json.loads(made.json())["rows"][0]["value"] is None
