"""`servefit profile` as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from servefit.cli import main
from servefit.cli.profile_display import ConsoleDisplay
from servefit.profiling.plan import Point
from tests.stub_process import STUB, Stub

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def servefit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Run the command line in an empty folder: status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["servefit", *words])
        for name, value in (env or {}).items():
            monkeypatch.setenv(name, value)
        status = 0
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


URL = "http://127.0.0.1:9"
DTYPE = ["--launch", "serve {port} {dtype}"]
LENGTHS = ["--input-tokens", "8", "--output-tokens", "8"]
LOAD = ["--batch", "2", *LENGTHS]
QUICK = ["--precision", "0.3", "--min-window", "0.1", "--max-point-time", "4", "--retries", "0"]


def test_a_profile_is_a_table_and_a_file_that_check_takes(
    stub: Stub, servefit: Run, tmp_path: Path
) -> None:
    code, out, err = servefit("profile", stub.url, *LOAD, *QUICK)
    assert code == 0, err
    assert "2 in flight" in out
    assert "servefit fit runs.jsonl" in out
    assert "not told by the server: --gpu" in err
    (row,) = [json.loads(x) for x in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert row["concurrency"] == 2
    code, out, err = servefit("check", "runs.jsonl")
    assert code == 0, err
    code, out, err = servefit("profile", stub.url, *LOAD, *QUICK)
    assert (code, out) == (0, "Nothing was missing in runs.jsonl.\n")


@pytest.mark.parametrize("most", [None, 4])
def test_the_time_left_is_told_by_the_pace_so_far(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    display = ConsoleDisplay(Console(file=StringIO()), most)
    points = [Point(1, input_length="8", output_length="8", repeat=i) for i in range(4)]
    if most is None:
        display.begin(points, [])
    display.point(points[0])
    assert display._time_left() == ""
    clock[0] += 10.0
    display.row(points[0], {"status": "failed", "error_detail": "x"})
    about = "about" if most is None else "at most about"
    assert display._time_left() == f"{about} 30 s left"
    display.point(points[1])
    clock[0] += 4.0
    assert display._time_left() == f"{about} 26 s left"
    clock[0] += 40.0  # it takes longer than the others
    assert display._time_left() == f"{about} 20 s left"


def test_json_is_the_rows_and_nothing_else(stub: Stub, servefit: Run, tmp_path: Path) -> None:
    code, out, _ = servefit("profile", stub.url, *LOAD, *QUICK, "--json")
    assert code == 0
    assert [row["status"] for row in json.loads(out)] == ["ok"]


def test_a_dry_run_measures_nothing_and_writes_nothing(
    stub: Stub, servefit: Run, tmp_path: Path
) -> None:
    code, _, err = servefit("profile", stub.url, *LOAD, "--dry-run")
    assert code == 0
    assert "2 in flight, 8+8 tokens" in err
    assert list(tmp_path.iterdir()) == []
    assert len(stub.log()) == 1


def test_without_the_extra_it_says_what_to_install(
    servefit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "aiohttp" else find(name)
    )
    code, _, err = servefit("profile", "http://127.0.0.1:9", *LOAD)
    assert code == 2
    assert "pip install 'servefit[profile]'" in err


def test_a_plan_from_a_file(stub: Stub, servefit: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("- {batch: 1, input_tokens: 4, output_tokens: 4}\n")
    code, _, err = servefit("profile", stub.url, "--plan", "plan.yaml", *QUICK, "-o", "x.jsonl")
    assert code == 0, err
    assert json.loads((tmp_path / "x.jsonl").read_text())["asked_input_tokens"] == "4"


def test_what_is_waited_for_is_said(stub: Stub, servefit: Run) -> None:
    stub.script(page_faults={"/v1/models": [503, 503]})
    code, _, err = servefit("profile", stub.url, *LOAD, *QUICK)
    assert code == 0
    assert err.count("HTTP 503; asking again in") == 2


def test_a_launch_that_fails_in_a_dry_run_is_one_line(servefit: Run) -> None:
    code, _, err = servefit("profile", "--launch", "no-such-program {port}", *LOAD, "--dry-run")
    assert code == 2
    assert "--launch: no-such-program: No such file" in err


@pytest.mark.parametrize(
    "words",
    [
        ["profile", *LOAD, "--auto", "3"],
        ["tune", "--input-tokens", "8", "--output-tokens", "8", "--slo", "tpot=1s"],
    ],
)
def test_a_launch_that_fails_is_named_where_points_are_chosen(
    servefit: Run, words: list[str]
) -> None:
    code = "import sys; sys.exit('error: unrecognized arguments: --max-num-seq 4')"
    launch = ["--launch", f'{sys.executable} -c "{code}" {{port}}']
    status, _, err = servefit(words[0], *launch, *words[1:])
    assert status == 2
    assert "--launch: the server ended with status 1: unknown argument --max-num-seq 4" in err
    assert "catalogue" not in err


def test_failed_points_exit_1_and_tell_the_reason(
    stub: Stub, servefit: Run, tmp_path: Path
) -> None:
    stub.script(faults=[{"kind": "500", "every": 1, "from": 1}])
    code, out, _ = servefit("profile", stub.url, *LOAD, *QUICK)
    assert code == 1
    assert "failed: 2 in flight" in out
    assert "HTTP 500" in out


def test_a_point_that_the_time_cuts_off_is_missing_and_exits_1(stub: Stub, servefit: Run) -> None:
    stub.script(step_s=0.05)
    slow = ["--precision", "0.01", "--max-point-time", "60", "--max-time", "1"]
    code, out, err = servefit("profile", stub.url, *LOAD, *slow)
    assert code == 1
    assert "Nothing was missing" not in out
    assert "--max-time is up: the same command again continues\n  missing: 2 in flight, 8+8" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile", *LOAD], "no server: give its URL"),
        (["profile", "http://127.0.0.1:9", *LOAD], "no answer (connect: "),
        (["profile", "http://127.0.0.1:9"], "no load: give --batch"),
        (["profile", "http://127.0.0.1:9", "--batch", "1"], "no lengths"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--plan", "p.yaml"], "a plan names its points"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--set", "x"], "--set x: give NAME=V1,V2"),
        (["profile", "http://127.0.0.1:9", *LOAD, "-o", "runs.csv"], "name it *.jsonl"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--api-key-env", "NO_SUCH"], "no such env"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--dtype", "float17"], "unknown dtype"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--gpu", "X9000"], "X9000"),
        (["profile", "--launch", "serve --port 5", *LOAD], "--launch has no {port}"),
        (["profile", "--launch", "serve {port} {seats}", *LOAD], "give --set seats=V1,V2"),
        (["profile", "http://127.0.0.1:9", *LOAD, "--set", "a=1"], "only a server started by --la"),
        (["profile", "--launch", "x {port}", *LOAD, "--set", "a=1"], "--launch has no {a} to put"),
        (["profile", "http://u:pw@127.0.0.1:9", *LOAD], "is refused"),
        (["profile", URL, *LOAD, "--kv-cache-dtype", "foo"], "--kv-cache-dtype: unknown dtype"),
        (["profile", URL, *LOAD, "--metrics-url", "metrics"], "--metrics-url metrics: give a path"),
        (["profile", URL, *LOAD, "--trace", "t.csv"], "input_tokens = 8: a trace has lengths"),
        (["profile", URL, *LOAD, "--arrivals", "constant"], "arrivals constant: only arrivals at"),
        (["profile", URL, *LOAD, "--arrivals", "bogus"], "arrivals 'bogus': must be one of"),
        (["profile", URL, *LOAD, "--law", "step"], "--law and no --auto: nothing is fitted"),
        (["profile", *DTYPE, *LOAD, "--set", "dtype=a", "--set", "dtype=b"], "dtype=V1,V2 once"),
        (["profile", *DTYPE, *LOAD, "--set", "port=9000"], "it is chosen by servefit"),
        (
            ["profile", URL, *LOAD, "--metrics-url", "http://u:secret@127.0.0.1:1/metrics"],
            "is refused, since it could leak a secret",
        ),
        (["profile", URL, *LENGTHS, "--auto", "3", "--law", "bogus"], "bogus"),
        (
            ["profile", *DTYPE, *LOAD, "--set", "dtype=foo"],
            "--set dtype=foo: unknown dtype 'foo'",
        ),
    ],
)
def test_mistakes_are_one_line_without_a_traceback(
    servefit: Run, words: list[str], said: str
) -> None:
    code, _, err = servefit(*words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("servefit:")]) == 1


def test_a_key_from_a_file_loses_its_line_end_and_may_hold_no_other(servefit: Run) -> None:
    for key, said in (("abc\n", "no answer (connect: "), ("a\nbc", "holds a control character")):
        code, _, err = servefit("profile", URL, *LOAD, env={"SERVEFIT_API_KEY": key})
        assert code == 2
        assert said in err
        assert "bc" not in err.replace("SERVEFIT_API_KEY", "")


def test_the_key_comes_from_the_environment_and_is_never_shown(
    stub: Stub, servefit: Run, tmp_path: Path
) -> None:
    stub.script(api_key="from-the-environment")
    code, out, err = servefit(
        "profile",
        stub.url,
        *LOAD,
        *QUICK,
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
        env={"MY_KEY": "a-wrong-secret"},
    )
    assert code == 2
    assert "HTTP 401" in more_err
    shown = out + err + more_out + more_err + (tmp_path / "runs.jsonl").read_text()
    assert "from-the-environment" not in shown
    assert "a-wrong-secret" not in shown


def test_an_option_for_the_key_itself_does_not_exist(servefit: Run) -> None:
    _, out, _ = servefit("profile", "--help")
    assert "--api-key-env" in out
    assert "--api-key " not in out


def test_tune_on_a_live_server_is_one_line(stub: Stub, servefit: Run, tmp_path: Path) -> None:
    stub.script(step_s=0.004, step_per_request_s=0.0004, prefill_token_s=1e-5)
    words = ["tune", stub.url, "--input-tokens", "16", "--output-tokens", "24", "--gpu", "L4"]
    quick = ["--precision", "0.2", "--min-window", "0.2", "--max-point-time", "5"]
    shape = ["--shape", "facebook/opt-125m", "--max-num-seqs", "16"]
    slo = ["--slo", "tpot=8ms", "--points", "3", "--confidence", "0.5", "--json"]
    code, out, err = servefit(*words, *quick, *shape, *slo)
    assert code in (0, 1), err  # 1: the SLO broke in the verification, on a busy machine
    told = json.loads(out)
    assert told["advice"]["feasible"] is True
    assert 2 <= told["advice"]["batch_cap"] <= 16
    assert len(told["verifications"]) >= 1
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert rows[0]["model"] == "facebook/opt-125m"
    assert len({row["point_id"] for row in rows}) == len(rows)


@pytest.mark.parametrize(
    "words",
    [
        ["profile", *LOAD[2:], "--auto", "3"],
        ["tune", *LOAD[2:], "--slo", "tpot=1s"],
    ],
    ids=["auto", "tune"],
)
def test_the_end_of_time_is_no_success_where_points_are_chosen(
    stub: Stub, servefit: Run, words: list[str]
) -> None:
    stub.script(step_s=0.05)
    slow = ["--precision", "0.001", "--max-point-time", "60", "--max-time", "1.5"]
    shape = ["--shape", "facebook/opt-125m", "--gpu", "L4", "--max-num-seqs", "4"]
    code, out, err = servefit(words[0], stub.url, *words[1:], *slow, *shape)
    assert (code, out) == (1, "")
    assert "next: 1 in flight, 8+8 tokens: the smallest load comes first" in err
    assert "--max-time is up" in err
    assert "missing: 1 in flight, 8+8 tokens, and what" in err
    assert "nothing could be advised" not in err


def test_tune_names_what_it_cannot_do(servefit: Run) -> None:
    words = ["tune", "http://127.0.0.1:9", "--input-tokens", "8", "--output-tokens", "8"]
    for more, said in (
        (["--slo", "speed=1"], "speed"),
        (["--slo", "tpot=1s", "--shape", "no/such-model"], "no/such-model"),
        (["--slo", "tpot=1s", "--set", "a=1,2"], "started only once"),
        (["--slo", "tpot=1s"], "no answer"),
    ):
        code, _, err = servefit(*words, *more)
        assert code == 2
        assert said in err
        assert "Traceback" not in err


AUTO = ["--auto", "3", *LOAD[2:], "--shape", "facebook/opt-125m", "--max-num-seqs", "4"]


@pytest.mark.parametrize(
    ("words", "labels"),
    [
        (LOAD, ["2 in flight, 8+8 tokens"]),
        (AUTO, [f"{n} in flight, 8+8 tokens" for n in (1, 2, 4)]),
    ],
    ids=["points", "auto"],
)
def test_a_dry_run_tells_machines_the_server_and_the_points(
    stub: Stub, servefit: Run, tmp_path: Path, words: list[str], labels: list[str]
) -> None:
    code, out, err = servefit("profile", stub.url, *words, "--dry-run", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert [point["label"] for point in told["points"]] == labels
    assert (told["server"]["model"], told["server"]["engine"]) == ("stub-model", "vllm")
    assert list(tmp_path.iterdir()) == []
    assert len(stub.log()) == 1  # the probe


def test_a_dry_run_of_points_to_choose_from_refuses_a_model_without_a_shape(
    stub: Stub, servefit: Run
) -> None:
    code, _, err = servefit("profile", stub.url, "--auto", "3", *LOAD[2:], "--dry-run")
    assert code == 2
    assert "not in the catalogue" in err


def test_dry_runs_launch_in_a_folder_of_their_own(
    servefit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    launch = ["--launch", f"{sys.executable} {STUB} {{port}}"]
    code, _, err = servefit("profile", *launch, *LOAD, "--dry-run")
    assert code == 0, err
    assert "servefit-dry-run-" in err
    assert list(tmp_path.rglob("*")) == [temporary]
    fails = ["--launch", f'{sys.executable} -c "print(1234567)" {{port}}']
    code, _, err = servefit("profile", *fails, *LOAD, "--dry-run")
    assert code == 2
    (log,) = temporary.rglob("*.log")
    assert servefit("profile", URL, *LOAD, "--dry-run")[0] == 2
    assert len(list(temporary.iterdir())) == 1  # nothing was launched, nothing stays
    assert str(log) in err  # to be read
    assert log.read_text() == "1234567\n"


@pytest.mark.parametrize(
    "words",
    [
        ["--batch", "1"],
        ["--rate", "1"],
        ["--arrivals", "poisson"],
        ["--input-tokens", "8"],
        ["--output-tokens", "8"],
        ["--trace", "t.csv"],
        ["--set", "a=1"],
        ["--repeats", "1"],
    ],
    ids=lambda words: words[0],
)
def test_no_flag_of_points_is_ignored_beside_a_plan(
    servefit: Run, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "plan.yaml").write_text("- {batch: 1, input_tokens: 4, output_tokens: 4}\n")
    code, _, err = servefit("profile", URL, "--plan", "plan.yaml", *words)
    assert code == 2
    assert f"{words[0]} and --plan: a plan names its points itself" in err


@pytest.mark.parametrize("flag", ["--rate", "--arrivals", "--trace", "--repeats", "--plan"])
def test_no_flag_is_ignored_where_points_are_chosen(servefit: Run, flag: str) -> None:
    code, _, err = servefit("profile", URL, *AUTO, flag, "2")
    assert code == 2
    assert f"{flag} and --auto: that chooses" in err


@pytest.mark.parametrize(
    "words",
    [
        ["--shape", "facebook/opt-125m"],
        ["--law", "step"],
        ["--endpoint", "auto"],
        ["--prompts", "text"],
        ["--insecure"],
        ["--launch-timeout", "900"],
        ["--stall-time", "9"],
        ["--retries", "1"],
        ["--api-key-env", "X"],
        ["--requests-dir", "d"],
        [URL],
    ],
    ids=lambda words: words[0],
)
def test_no_flag_of_a_server_is_ignored_offline(servefit: Run, words: list[str]) -> None:
    offline = ["--engine", "vllm-offline", "--model", "m", *LOAD, "--dry-run"]
    code, _, err = servefit("profile", *offline, *words)
    assert code == 2
    assert f"{'URL' if words == [URL] else words[0]} and " in err
    assert len(err.splitlines()) == 1


def test_a_dry_run_offline_tells_machines_the_arguments(servefit: Run) -> None:
    offline = ["--engine", "vllm-offline", "--model", "m", *LOAD, "--dry-run", "--json"]
    code, out, err = servefit("profile", *offline)
    assert code == 0, err
    told = json.loads(out)
    assert told["server"]["arguments"]["max_num_seqs"] == 2
    assert [p["label"] for p in told["points"]] == ["2 in flight, 8+8 tokens"]


def test_formats_of_numbers_go_by_one_name(stub: Stub, servefit: Run) -> None:
    words = ["--kv-cache-dtype", "fp8_e4m3", "--dtype", "half", "--json"]
    code, out, err = servefit("profile", stub.url, *LOAD, *QUICK, *words)
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["dtype"], row["kv_cache_dtype"]) == ("float16", "fp8")


def test_the_address_of_a_launched_server_must_be_one(servefit: Run) -> None:
    for url in ("http://127.0.0.1:99999", "http://127.0.0.1:x"):
        code, _, err = servefit("profile", url, "--launch", "sleep 5", *LOAD)
        assert code == 2
        assert url in err
        assert len(err.splitlines()) == 1
