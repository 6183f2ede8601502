"""`servefit profile` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stub_process import Stub


def servefit(*words: str, cwd: Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    import os

    done = subprocess.run(
        [sys.executable, "-m", "servefit", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


LOAD = ["--batch", "2", "--input-tokens", "8", "--output-tokens", "8"]
QUICK = ["--precision", "0.3", "--min-window", "0.1", "--max-point-time", "4", "--retries", "0"]


def test_a_profile_is_a_table_and_a_file_that_check_takes(stub: Stub, tmp_path: Path) -> None:
    code, out, err = servefit("profile", stub.url, *LOAD, *QUICK, cwd=tmp_path)
    assert code == 0, err
    assert "2 in flight" in out
    assert "servefit fit runs.jsonl" in out
    assert "not told by the server: --gpu" in err
    (row,) = [json.loads(x) for x in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert row["concurrency"] == 2
    code, out, err = servefit("check", "runs.jsonl", cwd=tmp_path)
    assert code == 0, err
    code, out, err = servefit("profile", stub.url, *LOAD, *QUICK, cwd=tmp_path)
    assert (code, out) == (0, "Nothing was missing in runs.jsonl.\n")


def test_json_is_the_rows_and_nothing_else(stub: Stub, tmp_path: Path) -> None:
    code, out, _ = servefit("profile", stub.url, *LOAD, *QUICK, "--json", cwd=tmp_path)
    assert code == 0
    assert [row["status"] for row in json.loads(out)] == ["ok"]


def test_a_dry_run_measures_nothing_and_writes_nothing(stub: Stub, tmp_path: Path) -> None:
    code, _, err = servefit("profile", stub.url, *LOAD, "--dry-run", cwd=tmp_path)
    assert code == 0
    assert "2 in flight, 8+8 tokens" in err
    assert list(tmp_path.iterdir()) == []
    assert len(stub.log()) == 1


def test_a_plan_from_a_file(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("- {batch: 1, input_tokens: 4, output_tokens: 4}\n")
    code, _, err = servefit(
        "profile", stub.url, "--plan", "plan.yaml", *QUICK, "-o", "x.jsonl", cwd=tmp_path
    )
    assert code == 0, err
    assert json.loads((tmp_path / "x.jsonl").read_text())["asked_input_tokens"] == "4"


def test_failed_points_exit_1_and_tell_the_reason(stub: Stub, tmp_path: Path) -> None:
    stub.script(faults=[{"kind": "500", "every": 1, "from": 1}])
    code, out, _ = servefit("profile", stub.url, *LOAD, *QUICK, cwd=tmp_path)
    assert code == 1
    assert "failed: 2 in flight" in out
    assert "HTTP 500" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile", *LOAD], "no server: give its URL"),
        (["profile", "http://127.0.0.1:9", *LOAD], "no answer: is the server running"),
        (["profile", "http://127.0.0.1:9"], "no load: give --batch"),
        (["profile", "http://127.0.0.1:9", "--batch", "1"], "no lengths"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--plan", "p.yaml"], "a plan names its points"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--set", "x"], "--set x: give NAME=V1,V2"),
        (["profile", "http://127.0.0.1:9", *LOAD, "-o", "runs.csv"], "name it *.jsonl"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--api-key-env", "NO_SUCH"], "no such env"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--dtype", "float17"], "unknown dtype"),
        (["profile", "--launch", "serve --port 5", *LOAD], "--launch has no {port}"),
        (["profile", "--launch", "serve {port} {seats}", *LOAD], "give --set seats=V1,V2"),
        (["profile", "http://u:pw@127.0.0.1:9", *LOAD], "is refused"),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(
    tmp_path: Path, words: list[str], said: str
) -> None:
    code, _, err = servefit(*words, cwd=tmp_path)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("servefit:")]) == 1


def test_the_key_comes_from_the_environment_and_is_never_shown(stub: Stub, tmp_path: Path) -> None:
    stub.script(api_key="from-the-environment")
    code, out, err = servefit(
        "profile",
        stub.url,
        *LOAD,
        *QUICK,
        cwd=tmp_path,
        env={"SERVEFIT_API_KEY": "from-the-environment"},
    )
    assert code == 0, err
    code, more_out, more_err = servefit(
        "profile",
        stub.url,
        *LOAD,
        *QUICK,
        "--api-key-env",
        "MY_KEY",
        cwd=tmp_path,
        env={"MY_KEY": "a-wrong-secret"},
    )
    assert code == 2
    assert "HTTP 401" in more_err
    shown = out + err + more_out + more_err + (tmp_path / "runs.jsonl").read_text()
    assert "from-the-environment" not in shown
    assert "a-wrong-secret" not in shown


def test_an_option_for_the_key_itself_does_not_exist(tmp_path: Path) -> None:
    _, out, _ = servefit("profile", "--help", cwd=tmp_path)
    assert "--api-key-env" in out
    assert "--api-key " not in out
