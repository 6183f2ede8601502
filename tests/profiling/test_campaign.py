"""Campaigns: order, resume after kills, retries, bounds, launched servers, secrets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.profiling import campaign as campaign_module
from servefit.profiling.campaign import Campaign, Options
from servefit.profiling.journal import Journal
from servefit.profiling.measure import Limits
from servefit.profiling.plan import Point, cross
from servefit.profiling.server import Server
from servefit.profiling.session import Target
from servefit.runs.check import check
from servefit.runs.table import read_table
from tests.stub_process import STUB, Stub, run, start_stub, stop_stub

QUICK = Limits(rel_err=0.2, max_point_s=3.0, stall_s=0.7, min_window_s=0.2)
POINTS = cross(batch=[1, 4], input_tokens=[8], output_tokens=[8, 16])
SERVE = f"{sys.executable} {STUB} {{port}}"


class Quiet:
    """A display that remembers."""

    def __init__(self) -> None:
        self.done: list[Point] = []
        self.skipped: list[Point] = []
        self.retries: list[str] = []

    def begin(self, points: Sequence[Point], done: Sequence[Point]) -> None: ...
    def server(self, server: Server) -> None: ...
    def point(self, point: Point) -> None: ...
    def progress(self, text: str) -> None: ...
    def say(self, text: str) -> None: ...

    def skip(self, point: Point) -> None:
        self.skipped.append(point)

    def retry(self, point: Point, reason: str) -> None:
        self.retries.append(reason)

    def row(self, point: Point, row: Mapping[str, Any]) -> None:
        self.done.append(point)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_module, "RETRY_PAUSE_S", 0.05)


def campaign(
    path: Path,
    target: Target,
    points: Sequence[Point] = POINTS,
    options: Options = Options(limits=QUICK, retries=1),  # noqa: B008
) -> tuple[list[dict[str, Any]], Quiet]:
    display = Quiet()
    with Journal(path) as journal:
        return run(Campaign(target, journal, options, display).run(points)), display


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_points_are_measured_cheapest_first_and_the_rows_are_a_sound_table(
    stub: Stub, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    rows, display = campaign(path, Target(stub.url, given={"gpu": "H100", "dtype": "bfloat16"}))
    assert [r["status"] for r in rows] == ["ok"] * 4
    costs = [p.relative_cost for p in display.done]
    assert costs == sorted(costs)
    assert rows_of(path) == rows
    table = read_table(path)
    assert table.problems == ()
    refused = [p for p in check(table).problems if p.severity == "refused"]
    assert refused == []
    assert table.texts("gpu") == ["H100"] * 4


def test_the_same_command_again_measures_nothing_twice(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    first, _ = campaign(path, Target(stub.url), POINTS[:2])
    again, display = campaign(path, Target(stub.url), POINTS)
    assert (len(first), len(again)) == (2, 2)
    assert set(display.skipped) == set(POINTS[:2])
    ids = Counter(r["point_id"] for r in rows_of(path))
    assert len(ids) == 4
    assert set(ids.values()) == {1}


def test_another_server_or_setting_is_another_question(stub: Stub, tmp_path: Path) -> None:
    path, other = tmp_path / "runs.jsonl", start_stub()
    stub.script(metrics="sglang", seats=8)
    other.script(metrics="sglang", seats=8)
    told = Target(stub.url, given={"gpu": "H100"})
    try:
        assert len(campaign(path, Target(stub.url), POINTS[:1])[0]) == 1
        assert len(campaign(path, Target(other.url), POINTS[:1])[0]) == 1
        assert len(campaign(path, told, POINTS[:1])[0]) == 1
        stub.script(metrics="sglang", seats=4)  # started again with fewer seats
        assert len(campaign(path, told, POINTS[:1])[0]) == 1
        assert campaign(path, told, POINTS[:1])[0] == []
        assert campaign(path, Target(f"{other.url}/v1/"), POINTS[:1])[0] == []
    finally:
        stop_stub(other)
    assert len({row["point_id"] for row in rows_of(path)}) == 4


def test_the_identity_of_a_launched_server_is_known_before_it_runs() -> None:
    target = Target(launch="serve {port}", given={"gpu": "H100", "dtype": None})
    assert target.identity() == target.identity(Server("m", settings={"max_num_seqs": 4}))
    others = [Target(launch="serve2 {port}", given=target.given), Target(launch="serve {port}")]
    assert len({t.identity() for t in (target, *others)}) == 3


def test_a_failed_point_is_recorded_with_its_reason_and_tried_by_the_next_run(
    stub: Stub, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    stub.script(faults=[{"kind": "503", "every": 1, "from": 1}])
    rows, display = campaign(path, Target(stub.url), POINTS[:1])
    assert (rows[0]["status"], rows[0]["error"], rows[0]["attempts"]) == ("failed", "http_503", 2)
    assert "requests failed" in rows[0]["error_detail"]
    assert len(display.retries) == 1
    stub.script()
    rows, _ = campaign(path, Target(stub.url), POINTS[:1])
    assert rows[0]["status"] == "ok"
    assert [r["status"] for r in rows_of(path)] == ["failed", "ok"]
    assert read_table(path).frame.height == 2


def test_a_point_that_the_server_cannot_do_fails_alone_and_at_once(
    stub: Stub, tmp_path: Path
) -> None:
    stub.script(max_model_len=64)
    points = [*POINTS[:1], *cross(batch=[1], input_tokens=[60], output_tokens=[8])]
    rows, display = campaign(tmp_path / "runs.jsonl", Target(stub.url), points)
    assert {r["status"]: r.get("error") for r in rows} == {
        "ok": None,
        "failed": "impossible",
    }
    assert "max_model_len 64" in next(r["error_detail"] for r in rows if r["status"] == "failed")
    assert display.retries == []


def test_a_trace_that_cannot_be_read_is_refused_before_anything_is_measured(
    stub: Stub, tmp_path: Path
) -> None:
    points = [*POINTS[:1], Point(4, trace=str(tmp_path / "none.csv"))]
    with pytest.raises(ServefitError, match="cannot be read"):
        campaign(tmp_path / "runs.jsonl", Target(stub.url), points)
    assert stub.log() == []


def test_a_trace_that_is_too_short_is_not_tried_again(stub: Stub, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n1700000000,8,4\n")
    points = [Point(arrivals="trace", trace=str(trace))]
    rows, display = campaign(tmp_path / "runs.jsonl", Target(stub.url), points)
    assert (rows[0]["error"], rows[0]["attempts"]) == ("too_few_arrivals", 1)
    assert "the trace, of 1 requests in all, ends before" in rows[0]["error_detail"]
    assert display.retries == []


@pytest.mark.parametrize("replay", [True, False])
def test_too_few_arrivals_in_the_time_are_named(stub: Stub, tmp_path: Path, replay: bool) -> None:
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{i},8,4\n" for i in range(100))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    lengths = {"input_length": "8", "output_length": "4"}
    point = Point(None, 1.0, "constant", **lengths)
    if replay:
        point = Point(arrivals="trace", trace=str(trace))
    (row,), _ = campaign(tmp_path / "runs.jsonl", Target(stub.url), [point])
    assert (row["error"], row["attempts"]) == ("too_few_arrivals", 1)
    sent = f"only [34]{' of 100' if replay else ''} requests arrived in 3 s"
    assert re.match(sent, row["error_detail"])


def test_a_point_that_fails_at_first_is_measured_by_its_retries(stub: Stub, tmp_path: Path) -> None:
    stub.script(faults=[{"kind": "500", "at": [1, 2, 3]}])
    options = Options(limits=QUICK, retries=3)
    rows, display = campaign(tmp_path / "runs.jsonl", Target(stub.url), POINTS[:1], options)
    assert rows[0]["status"] == "ok"
    assert rows[0]["attempts"] == len(display.retries) + 1 > 1
    assert "http_500" in display.retries[0]


def test_the_total_time_is_bounded_even_by_a_server_that_hangs(stub: Stub, tmp_path: Path) -> None:
    stub.script(faults=[{"kind": "mute", "every": 1, "from": 1}])
    options = Options(limits=QUICK, max_time_s=1.5, retries=5)
    begun_s = time.perf_counter()
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(stub.url), POINTS * 3, options)
    assert time.perf_counter() - begun_s < 4
    assert len(rows) < len(POINTS)


def test_a_point_cut_off_by_the_campaign_s_end_is_left_for_the_next_run(
    stub: Stub, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    display = Quiet()
    options = Options(limits=Limits(1e-9, 60.0, 5.0), max_time_s=1.0)
    with Journal(path) as journal:
        cut = Campaign(Target(stub.url), journal, options, display)
        assert run(cut.run(POINTS[:1])) == []
        assert (cut.out_of_time, cut.missing) == (True, POINTS[:1])
    rows, _ = campaign(path, Target(stub.url), POINTS[:1])
    assert [r["status"] for r in rows] == ["ok"]


def test_a_server_that_is_busy_to_the_end_leaves_every_point_missing(
    stub: Stub, tmp_path: Path
) -> None:
    stub.script(page_faults={"/v1/models": [503] * 1000})
    options = Options(limits=QUICK, max_time_s=0.4)
    with Journal(tmp_path / "runs.jsonl") as journal:
        late = Campaign(Target(stub.url), journal, options, Quiet())
        assert run(late.run(POINTS[:2])) == []
    assert (late.out_of_time, late.missing) == (True, POINTS[:2])


def test_what_was_measured_before_is_not_missing_when_the_time_is_up(
    stub: Stub, tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    campaign(path, Target(stub.url), POINTS[3:])
    options = Options(limits=Limits(1e-9, 60.0, 5.0), max_time_s=0.7)
    with Journal(path) as journal:
        late = Campaign(Target(stub.url), journal, options, Quiet())
        run(late.run([POINTS[0], POINTS[3]]))
    assert late.missing == [POINTS[0]]


def test_rows_of_several_engines_are_taken_by_check_and_flagged(stub: Stub, tmp_path: Path) -> None:
    stub.script(engines=2, seats=4)
    path = tmp_path / "runs.jsonl"
    target = Target(stub.url, given={"max_num_seqs": 2})
    (row,) = campaign(path, target, POINTS[2:3])[0]
    assert (row["data_parallel_size"], row["max_num_seqs"], row["concurrency"]) == (2, 2, 4)
    assert row["mean_batch"] > 2
    problems = check(read_table(path)).problems
    assert "refused" not in {p.severity for p in problems}
    assert "no law of one engine holds" in str(problems)


def test_a_server_that_dies_costs_its_points_and_ends(tmp_path: Path) -> None:
    stub = start_stub()
    stub.script(faults=[{"kind": "die", "at": [4]}], step_s=0.001)
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(stub.url), POINTS[:2])
    stop_stub(stub)
    assert [r["status"] for r in rows] == ["failed", "failed"]
    assert {r["error"] for r in rows} <= {"cut", "connect"}


def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ServefitError, match=r"no answer .*: is the server running"):
        campaign(tmp_path / "runs.jsonl", Target("http://127.0.0.1:9"))


def test_a_launched_server_is_started_for_each_setting_and_stopped(tmp_path: Path) -> None:
    script = json.dumps({"seats": 0, "metrics": "sglang"}).replace("0", "{max_num_seqs}")
    points = cross(
        batch=[4],
        input_tokens=[8],
        output_tokens=[16],
        settings=[{"max_num_seqs": 2}, {"max_num_seqs": 4}],
    )
    path = tmp_path / "runs.jsonl"
    rows, _ = campaign(path, Target(launch=f"{SERVE} '{script}'"), points)
    assert {(r["max_num_seqs"], round(r["mean_batch"])) for r in rows} == {(2, 2), (4, 4)}
    logs = sorted(p.name for p in tmp_path.glob("*.log"))
    assert logs == [f"runs.jsonl.max_num_seqs-{n}.server.log" for n in (2, 4)]
    assert not list(tmp_path.glob("*.pid"))
    again, _ = campaign(path, Target(launch=f"{SERVE} '{script}'"), points)
    assert again == []


def test_the_log_of_any_setting_has_a_name_that_files_can_have(tmp_path: Path) -> None:
    script = json.dumps({"step_s": 0.001, "api_key": None, "faults": [{"kind": "/" * 300}]})
    setting = [{"script": script}]
    points = cross(batch=[1], input_tokens=[8], output_tokens=[8], settings=setting)
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(launch=f"{SERVE} {{script}}"), points)
    assert rows[0]["status"] == "ok"
    (log,) = tmp_path.glob("runs.jsonl.script-__step_s*.server.log")
    assert len(log.name) < 140


def test_a_launched_server_that_dies_is_started_again(tmp_path: Path) -> None:
    script = json.dumps({"faults": [{"kind": "die", "at": [6]}], "step_s": 0.001})
    rows, display = campaign(
        tmp_path / "runs.jsonl", Target(launch=f"{SERVE} '{script}'"), POINTS[:1]
    )
    assert len(rows) == 1
    assert len(display.retries) == 1
    assert rows[0]["attempts"] == 2


def test_a_launched_server_that_dies_after_its_last_point_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = serve_once("print(3)", tmp_path / "flag")
    append = Campaign._append

    def append_and_kill(self: Campaign, *row: Any) -> None:
        append(self, *row)
        pid = json.loads((tmp_path / "runs.jsonl.server.pid").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)

    monkeypatch.setattr(Campaign, "_append", append_and_kill)
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(launch=command), POINTS[:1])
    assert [row["status"] for row in rows] == ["ok"]
    (log,) = tmp_path.glob("*.server.log")
    assert len(log.read_text().splitlines()) == 1


def test_a_launch_that_fails_names_the_cause_for_its_points_only(tmp_path: Path) -> None:
    code = (
        "import sys; sys.exit('ValueError: No available memory for the cache blocks.') "
        "if sys.argv[1] == '9' else exec(open(sys.argv.pop()).read())"
    )
    command = f'{sys.executable} -c "{code}" {{max_num_seqs}} {{port}} {STUB}'
    points = cross(batch=[1], input_tokens=[8], output_tokens=[8], settings=[{"max_num_seqs": 9}])
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(launch=command), points)
    assert (rows[0]["status"], rows[0]["error"]) == ("failed", "launch")
    assert "no memory is left for KV-cache blocks" in rows[0]["error_detail"]
    assert rows[0]["max_num_seqs"] == 9


def late_campaign(path: Path, launch: str, max_time_s: float) -> Campaign:
    with Journal(path) as journal:
        options = Options(limits=Limits(1e-9, 60.0, 5.0), max_time_s=max_time_s)
        late = Campaign(Target(launch=launch), journal, options, Quiet())
        assert run(late.run(POINTS[:2])) == []
    return late


def test_a_launch_cut_off_by_the_campaign_s_end_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    late = late_campaign(path, f'{sys.executable} -c "import time; time.sleep(30)" {{port}}', 0.6)
    assert late.out_of_time
    assert late.missing == POINTS[:2]
    assert path.read_text() == ""
    assert not list(tmp_path.glob("*.pid"))


def serve_once(again: str, flag: Path, script: str = "{}") -> str:
    """A launch command that serves the first time; then it does what ``again`` says."""
    serve = f"os.execv(sys.executable, [sys.executable, '{STUB}', sys.argv[1], sys.argv[2]])"
    code = f"import os, sys, time; p = '{flag}'; f = os.path.exists(p); open(p, 'w'); "
    return f"{sys.executable} -c \"{code}{again} if f else {serve}\" {{port}} '{script}'"


def test_a_launched_server_that_dies_as_the_time_ends_leaves_no_false_row(tmp_path: Path) -> None:
    script = json.dumps({"faults": [{"kind": "die", "at": [3]}]})
    command = serve_once("time.sleep(30)", tmp_path / "flag", script)
    late = late_campaign(tmp_path / "runs.jsonl", command, 3.0)
    assert late.missing == POINTS[:2]


def test_a_launch_that_fails_spares_what_was_measured_before(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    target = Target(launch=serve_once("sys.exit(3)", tmp_path / "flag"))
    assert [r["status"] for r in campaign(path, target, POINTS[:1])[0]] == ["ok"]
    rows, _ = campaign(path, target, POINTS[:3])
    assert [(r["status"], r["error"]) for r in rows] == [("failed", "launch")] * 2
    assert "status 3" in rows[0]["error_detail"]


def test_a_launched_server_that_ends_at_the_first_request_is_named(tmp_path: Path) -> None:
    script = json.dumps({"faults": [{"kind": "die", "at": [0]}]})
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(launch=f"{SERVE} '{script}'"), POINTS[:1])
    assert rows[0]["error"] == "launch"
    assert "the server ended with status 1" in rows[0]["error_detail"]


def test_a_port_that_another_server_holds_is_not_measured(stub: Stub, tmp_path: Path) -> None:
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(stub.url, launch=SERVE), POINTS[:1])
    assert "another server answers" in rows[0]["error_detail"]
    assert stub.log() == []


def test_requests_are_written_with_their_times(stub: Stub, tmp_path: Path) -> None:
    folder = tmp_path / "requests"
    options = Options(limits=QUICK, requests_dir=folder)
    rows, _ = campaign(tmp_path / "runs.jsonl", Target(stub.url), POINTS[:1], options)
    records = [json.loads(line) for line in next(folder.iterdir()).read_text().splitlines()]
    assert len(records) == rows[0]["requests_sent"]
    done = [r for r in records if r["outcome"] == "completed"]
    assert all(r["scheduled_s"] <= r["sent_s"] < r["first_token_s"] for r in done)
    assert all(len(r["chunk_s"]) == len(r["chunk_tokens"]) == r["output_tokens"] for r in done)


def test_the_api_key_reaches_no_row_log_or_request_file(stub: Stub, tmp_path: Path) -> None:
    stub.script(api_key="top-secret-key")
    options = Options(limits=QUICK, requests_dir=tmp_path / "requests")
    target = Target(stub.url, api_key="top-secret-key")
    campaign(tmp_path / "runs.jsonl", target, POINTS[:1], options)
    stub.script(api_key="changed", faults=[])
    with pytest.raises(ServefitError) as error:
        campaign(tmp_path / "more.jsonl", target, POINTS[:1], options)
    assert "top-secret-key" not in repr(target)
    assert "top-secret-key" not in str(error.value)
    for file in (p for p in tmp_path.rglob("*") if p.is_file()):
        assert "top-secret-key" not in file.read_text()


def profile(url: str, path: Path, *more: str) -> subprocess.Popen[str]:
    """The command, as a user runs it: 4 points."""
    words = ["profile", url, "--batch", "1,4", "--input-tokens", "8", "--output-tokens", "8,16"]
    limits = ["--precision", "0.2", "--min-window", "0.2", "--max-point-time", "5"]
    return subprocess.Popen(
        [sys.executable, "-m", "servefit", *words, *limits, "-o", str(path), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kill_after_rows", [0, 1, 3])
def test_killed_at_any_moment_a_rerun_loses_nothing_and_repeats_nothing(
    stub: Stub, tmp_path: Path, kill_after_rows: int
) -> None:
    path = tmp_path / "runs.jsonl"
    process = profile(stub.url, path)
    give_up_s = time.perf_counter() + 20
    while (len(path.read_text().splitlines()) if path.exists() else 0) < kill_after_rows or not (
        kill_after_rows or len(stub.log()) > 3
    ):
        assert time.perf_counter() < give_up_s
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = rows_of(path)
    assert len(before) in (kill_after_rows, kill_after_rows + 1)
    process = profile(stub.url, path)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    after = rows_of(path)
    assert after[: len(before)] == before
    assert len({r["point_id"] for r in after}) == len(after) == 4
    assert {r["status"] for r in after} == {"ok"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_ending_servefit_in_the_middle_stops_the_server_that_it_launched(
    tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "runs.jsonl"
    process = profile(f"http://127.0.0.1:{_free_port()}", path, "--launch", SERVE)
    pid_file = tmp_path / "runs.jsonl.server.pid"
    give_up_s = time.perf_counter() + 20
    while not path.exists() or not path.read_text():
        assert time.perf_counter() < give_up_s
        time.sleep(0.02)
    pid = json.loads(pid_file.read_text())["pid"]
    process.send_signal(how)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert not Path(f"/proc/{pid}").exists()
    assert not pid_file.exists()


def test_campaigns_into_files_of_like_names_leave_each_other_s_server_alone(tmp_path: Path) -> None:
    slow = ["--precision", "0.01", "--max-time", "20", "--launch", SERVE]
    first = profile(f"http://127.0.0.1:{_free_port()}", tmp_path / "s.jsonl", *slow)
    pid_file = tmp_path / "s.jsonl.server.pid"
    give_up_s = time.perf_counter() + 20
    while not pid_file.exists():
        assert time.perf_counter() < give_up_s
        time.sleep(0.02)
    pid = json.loads(pid_file.read_text())["pid"]
    rows, _ = campaign(tmp_path / "s.ndjson", Target(launch=SERVE), POINTS[:1])
    assert rows[0]["status"] == "ok"
    assert Path(f"/proc/{pid}").exists()
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)


def test_two_processes_on_one_file_are_refused(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with Journal(path):
        _, errors = profile(stub.url, path).communicate(timeout=20)
    assert "another servefit is writing to it" in errors
    assert len(errors.splitlines()) == 1


def _free_port() -> int:
    from servefit.profiling.launch import free_port

    return free_port()
