"""The campaign file under kills, full disks and twins."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.profiling.journal import Journal
from servefit.runs.schema import SCHEMA_VERSION

ROW = {"point_id": "a", "status": "ok", "value": 1.5}


def test_rows_are_on_the_disk_when_append_returns(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.append(ROW)
        assert [json.loads(line) for line in path.read_text().splitlines()] == [ROW]
    with Journal(path) as journal:
        assert journal.rows == [ROW]


@pytest.mark.parametrize("kept", range(1, 44, 3))
def test_a_torn_last_row_is_cut_off_and_the_others_stay(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "runs.jsonl"
    line = json.dumps(ROW) + "\n"
    path.write_text(line + line[:kept])
    with Journal(path) as journal:
        assert journal.rows == [ROW]
        journal.append({**ROW, "point_id": "b"})
    assert [json.loads(x)["point_id"] for x in path.read_text().splitlines()] == ["a", "b"]


def test_a_row_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(ROW))
    with Journal(path) as journal:
        assert journal.rows == [ROW]
        journal.append(ROW)
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("text", ["a,b\n1,2\n", '{"a": 1}\nhello\n', "hello", "[1]\n"])
def test_files_that_are_no_json_lines_are_refused_untouched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(text)
    with pytest.raises(ServefitError, match="no JSON object"), Journal(path):
        pass
    assert path.read_text() == text


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    code = (
        "import sys; from servefit.profiling.journal import Journal\n"
        "with Journal(sys.argv[1]): pass"
    )
    with Journal(path):
        other = subprocess.run(
            [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
        )
    assert "another servefit is writing to it" in other.stderr
    with Journal(path):
        pass


def test_a_full_disk_leaves_the_file_as_it_was_and_shows_the_row(tmp_path: Path) -> None:
    """The file size limit of the process stands for the full disk: it, too, cuts a write short."""
    path = tmp_path / "runs.jsonl"
    code = (
        "import resource, sys; from servefit.profiling.journal import Journal\n"
        "with Journal(sys.argv[1]) as journal:\n"
        "    journal.append({'point_id': 'first'})\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "    journal.append({'point_id': 'second'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert "cannot be written (File too large): make room and run again" in done.stderr
    assert '{"point_id": "second"}' in done.stderr
    assert path.read_text() == '{"point_id": "first"}\n'


def test_no_space_left_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        journal.append(ROW)

        def full(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(ServefitError, match="No space left on device"):
            journal.append(ROW)
        monkeypatch.undo()
        journal.append({**ROW, "point_id": "b"})
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("runs.csv", r"name it \*\.jsonl"), ("no/such/runs.jsonl", "cannot be opened")],
)
def test_impossible_files_are_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ServefitError, match=words), Journal(tmp_path / name):
        pass


def test_a_device_is_no_campaign_file(tmp_path: Path) -> None:
    link = tmp_path / "full.jsonl"
    link.symlink_to("/dev/full")
    with pytest.raises(ServefitError, match="is no regular file"), Journal(link):
        pass


@pytest.mark.parametrize(
    ("row", "result"),
    [
        ({"status": "ok"}, True),
        ({"status": "ok", "num_requests": 100, "completed": 99}, True),
        ({"status": "ok", "num_requests": 20, "completed": 18}, False),
        ({"status": "failed", "num_requests": 0, "completed": 0}, False),
    ],
)
def test_a_row_that_check_would_refuse_for_its_failures_is_no_result(
    tmp_path: Path, row: dict[str, Any], result: bool
) -> None:
    (tmp_path / "runs.jsonl").write_text(json.dumps({"point_id": "a", **row}) + "\n")
    with Journal(tmp_path / "runs.jsonl") as journal:
        assert journal.measured == ({"a"} if result else set())


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("version", ["2", '"two"', "1.5"])
def test_a_campaign_file_of_a_newer_version_is_refused(
    tmp_path: Path, version: str, end: str
) -> None:
    path = tmp_path / "runs.jsonl"
    text = f'{{"schema_version": {version}, "status": "ok"}}{end}'
    path.write_text(text)
    with pytest.raises(ServefitError, match=f"schema version .*up to {SCHEMA_VERSION}: upgrade"):
        Journal(path).__enter__()
    assert path.read_text() == text


def test_a_line_nested_without_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("[" * 200_000 + "\n")
    with pytest.raises(ServefitError, match="line 1 is no JSON object"):
        Journal(path).__enter__()
