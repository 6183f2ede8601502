from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from servefit.runs.table import read_table

from .conftest import Run


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Two good rows, one flagged as a repeat, and three bad ones."""
    file = tmp_path / "mixed.csv"
    file.write_text(
        "model,gpu,campaign,input_tokens,output_tokens,batch,e2e_s,total_tokens_per_s\n"
        "facebook/opt-1.3b,H100,a,100,100,4,2,400\n"
        "facebook/opt-1.3b,H100,a,100,100,4,2,900\n"
        "facebook/opt-1.3b,H100,b,100,100,8,4,fast\n"
        "facebook/opt-1.3b,H100,b,100,100,8,4,400\n"
        "facebook/opt-1.3b,H100,b,100\n"
        "facebook/opt-1.3b,H100,a,100,100,4,2,400\n"
    )
    return file


def test_good_runs_pass(run: Run, runs: Path) -> None:
    outcome = run("check", runs)
    assert outcome.status == 0
    assert outcome.out.strip() == "16 rows of runs: 16 good (0 of them flagged), 0 refused"


def test_every_problem_is_listed_and_counted(run: Run, mixed: Path) -> None:
    outcome = run("check", mixed)
    assert outcome.status == 1
    for word in ("total_tokens_per_s", "900", "fast", "not a number", "fields", "repeats"):
        assert word in outcome.out
    assert "6 rows of runs: 3 good (1 of them flagged), 3 refused" in outcome.out


def test_json_holds_the_same(run: Run, mixed: Path) -> None:
    outcome = run("check", mixed, "--json")
    assert outcome.status == 1
    result = outcome.json
    assert {key: result[key] for key in ("kind", "rows", "good", "refused", "flagged")} == {
        "kind": "runs",
        "rows": 6,
        "good": 3,
        "refused": 3,
        "flagged": 1,
    }
    assert [(p["row"], p["column"], p["severity"]) for p in result["problems"]] == [
        (1, "total_tokens_per_s", "refused"),
        (2, "total_tokens_per_s", "refused"),
        (4, "", "refused"),
        (5, "", "flagged"),
    ]
    assert all(p["file"] == str(mixed) and p["reason"] for p in result["problems"])


def test_the_good_rows_can_be_written_and_pass_when_read_again(run: Run, mixed: Path) -> None:
    clean = mixed.with_name("clean.jsonl")
    assert run("check", mixed, "-o", clean).status == 1
    assert read_table(clean).frame.height == 3
    assert run("check", clean).status == 0


def test_stdin_to_stdout_is_clean_csv(
    run: Run, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(mixed.read_bytes())))
    outcome = run("check", "-", "-o", "-")
    assert outcome.out.startswith("schema_version,model,gpu,")
    assert len(outcome.out.splitlines()) == 4
    assert "3 refused" in outcome.err


def test_where_narrows_what_is_checked(run: Run, mixed: Path) -> None:
    outcome = run("check", mixed, "--where", "campaign=b", "--json")
    assert outcome.json["good"] == 1
    outcome = run("check", mixed, "--where", "campaign=c")
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "campaign=c" in outcome.err


def test_columns_are_listed_without_a_file(run: Run) -> None:
    outcome = run("check", "--columns")
    assert outcome.status == 0
    for word in ("mean_batch", "step_time_s", "request_throughput"):
        assert word in outcome.out
    assert {c["name"] for c in run("check", "--columns", "--json").json["steps"]} >= {"step_time_s"}


def test_markup_and_escapes_in_a_file_are_printed_as_text(run: Run, mixed: Path) -> None:
    mixed.write_text(mixed.read_text().replace("fast", "[bold]x[/bold]"))
    assert "[bold]x[/bold]" in run("check", mixed).out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("a,b\n1,2\n", "no known column"),
        ("model,input_tokens\na,1\n", "lacks the column output_tokens"),
        ("model,input_tokens,output_tokens,batch,e2e_s,schema_version\na,1,1,1,1,99\n", "upgrade"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_status_2(
    run: Run, tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content)
    outcome = run("check", file)
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"servefit: {file}: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


def test_nothing_is_written_when_every_row_is_refused(run: Run, tmp_path: Path) -> None:
    file, clean = tmp_path / "bad.csv", tmp_path / "clean.csv"
    file.write_text("model,input_tokens,output_tokens,batch,e2e_s\nfacebook/opt-1.3b,1,1,1,-1\n")
    outcome = run("check", file, "-o", clean)
    assert outcome.status == 2
    assert not clean.exists()


def test_other_commands_say_how_many_rows_were_refused_and_flagged(run: Run, mixed: Path) -> None:
    outcome = run("evaluate", mixed, "--train", "row=0", "--test", "row!=0", "--json")
    assert "3 rows refused, first row 1" in outcome.err
    assert "1 row flagged and kept" in outcome.err
