from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.explore.answer import document, view_of
from servefit.explore.app import host_of
from servefit.explore.caps import SOME_CAPS
from servefit.explore.fields import FieldError, read
from servefit.explore.session import Session
from servefit.hardware import get_hardware
from servefit.models import get_model
from servefit.report.view import look
from tests.cli.conftest import Run
from tests.explore.conftest import ASKED


def view(client: httpx.Client, **changes: str) -> dict[str, object]:
    response = client.get("/api/view", params=ASKED | changes)
    assert response.status_code == 200, response.text
    found: dict[str, object] = response.json()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slo": "e2e", "slo_ms": "9000", "rule": "tolerance", "epsilon": "0.2"},
        {"cv_input": "0.8", "cv_output": "0.9", "correlation": "0.1", "rate": "50"},
        {"kv_cache_dtype": "fp8", "tensor_parallel_size": "2", "confidence": "0.5", "slo": ""},
        {"input_tokens": "16", "output_tokens": "8", "slo": "e2e", "slo_ms": "300"},
        {"engine": "sglang", "gpu_memory_utilization": "0.8", "other_gib": "4"},
        {"max_num_batched_tokens": "2048", "kv_capacity_tokens": "100000", "gpu": "A100-80GB"},
        {"slo2": "e2e", "slo2_ms": "3000", "slo3": "ttft", "slo3_ms": "8.5"},
        {"slo_kind": "times", "slo_times": "1.7", "slo_batch": "4", "slo2": "ttft", "slo2_ms": "9"},
        {"slo2": "tpot", "slo2_ms": "8", "slo3": "e2e", "slo3_kind": "times", "slo3_batch": "16"},
        {"prefix_hit_rate": "0.6", "chunked_prefill": "no", "pipeline_parallel_size": "2"},
        {"draft_tokens": "4", "acceptance_rate": "0.7", "chunked_prefill": "yes", "rate": "9"},
    ],
)
def test_the_page_says_what_the_command_that_it_shows_says(
    client: httpx.Client, run: Run, changes: dict[str, str]
) -> None:
    shown = view(client, **changes)
    command = shlex.split(str(shown["command"]))
    assert command[:2] == ["servefit", "advise"]
    outcome = run(*command[1:], "--json")
    assert outcome.status == 0, outcome.err
    assert shown["advice"] == json.loads(outcome.out)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "meta-llama/Llama-2-7b-hf"),
        ("gpu", "A100-80GB"),
        ("tensor_parallel_size", "2"),
        ("dtype", "fp8"),
        ("kv_cache_dtype", "fp8"),
        ("workload", "chat.csv"),
        ("input_tokens", "1000"),
        ("output_tokens", "100"),
        ("cv_input", "1"),
        ("cv_output", "1"),
        ("slo", "e2e"),
        ("slo_ms", "6"),
        ("confidence", "0.5"),
        ("rule", "tolerance"),
        ("epsilon", "0.5"),
        ("rate", "100"),
        ("engine", "llama.cpp"),
        ("gpu_memory_utilization", "0.5"),
        ("other_gib", "10"),
        ("max_num_batched_tokens", "64"),
        ("kv_capacity_tokens", "20000"),
        ("chunked_prefill", "no"),
        ("prefix_hit_rate", "0.9"),
        ("pipeline_parallel_size", "2"),
        ("draft_tokens", "4"),
    ],
)
def test_every_control_changes_the_answer(client: httpx.Client, name: str, value: str) -> None:
    before, after = view(client), view(client, **{name: value})
    assert before["advice"] != after["advice"]
    assert before["command"] != after["command"] or name == "workload"


@pytest.mark.parametrize(
    ("also", "name", "value"),
    [
        ({"cv_input": "1", "cv_output": "1"}, "correlation", "0.5"),
        ({"draft_tokens": "4"}, "acceptance_rate", "0.8"),
        ({"slo_kind": "ms"}, "slo_kind", "times"),
        ({"slo_kind": "times"}, "slo_times", "1.2"),
        ({"slo_kind": "times"}, "slo_batch", "16"),
        ({"slo2_ms": "8"}, "slo2", "ttft"),
        ({"slo2": "e2e"}, "slo2_ms", "2000"),
        ({"slo2": "e2e", "slo2_ms": "3000"}, "slo2_kind", "times"),
        ({"slo2": "e2e", "slo2_kind": "times"}, "slo2_times", "1.5"),
        ({"slo2": "e2e", "slo2_kind": "times", "slo2_times": "1.5"}, "slo2_batch", "4"),
        ({"slo3_ms": "8"}, "slo3", "ttft"),
        ({"slo3": "e2e"}, "slo3_ms", "2000"),
        ({"slo3": "e2e", "slo3_ms": "3000"}, "slo3_kind", "times"),
        ({"slo3": "e2e", "slo3_kind": "times"}, "slo3_times", "1.5"),
        ({"slo3": "e2e", "slo3_kind": "times", "slo3_times": "1.5"}, "slo3_batch", "4"),
    ],
)
def test_a_control_that_counts_with_another_changes_the_answer(
    client: httpx.Client, also: dict[str, str], name: str, value: str
) -> None:
    before, after = view(client, **also), view(client, **{**also, name: value})
    assert before["advice"] != after["advice"]
    assert before["command"] != after["command"]


def test_every_control_is_tested(session: Session) -> None:
    alone = test_every_control_changes_the_answer.pytestmark[0].args[1]  # type: ignore[attr-defined]
    with_another = test_a_control_that_counts_with_another_changes_the_answer.pytestmark[0].args[1]  # type: ignore[attr-defined]
    tested = {name for name, _ in alone} | {name for _, name, _ in with_another}
    assert tested == {field.name for field in session.controls()}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("input_tokens", "-5", "'-5' is outside 1 to 131,072"),
        ("input_tokens", "1e400", "not a number"),
        ("input_tokens", "1e3", "not a number"),
        ("input_tokens", "1_0", "not a number"),
        ("input_tokens", "١٢", "not a number"),
        ("input_tokens", "250\n", "not a number"),
        ("input_tokens", "inf", "not a number"),
        ("slo_ms", "2000000", "outside 0.1 to 1,000,000"),
        ("input_tokens", "9" * 180, "outside"),
        ("input_tokens", "9" * 500, "characters"),
        ("input_tokens", "nan", "not a number"),
        ("input_tokens", "many", "'many' is not a number"),
        ("input_tokens", "", "give a number"),
        ("max_num_batched_tokens", "2.5", "not a whole number"),
        ("confidence", "1", "outside 0.5 to 0.995"),
        ("model", "/etc/passwd", "none of the choices"),
        ("model", "../../etc/passwd", "none of the choices"),
        ("model", "<img src=x onerror=alert(1)>", "none of the choices"),
        ("gpu", "name=x,flops=1,bandwidth=1", "none of the choices"),
        ("workload", "/etc/passwd", "none of the choices"),
        ("engine", "\x00", "none of the choices"),
        ("correlation", "0.5", "needs lengths that vary"),
        ("acceptance_rate", "0.5", "draft_tokens"),
        ("slo2", "p99", "none of the choices"),
        ("slo_batch", "1.5", "not a whole number"),
    ],
)
def test_an_impossible_value_is_named_beside_its_control(
    client: httpx.Client, name: str, value: str, said: str
) -> None:
    response = client.get("/api/view", params=ASKED | {name: value})
    assert response.status_code == 422
    assert said in response.json()["errors"][name]


def test_every_mistake_is_named_at_once(client: httpx.Client) -> None:
    response = client.get("/api/view", params={"input_tokens": "x", "epsilon": "2", "wat": "1"})
    assert response.status_code == 422
    assert set(response.json()["errors"]) == {"input_tokens", "epsilon", ""}


def test_a_value_given_twice_is_refused(client: httpx.Client) -> None:
    response = client.get("/api/view?epsilon=0.1&epsilon=0.2")
    assert response.json() == {"errors": {"epsilon": "given more than once"}}


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({"slo_ms": "0.1"}, "slo_ms"),
        ({"slo2": "e2e", "slo2_ms": "1"}, "slo2_ms"),
        ({"slo3": "e2e", "slo3_kind": "times", "slo3_times": "0.1"}, "slo3_times"),
        ({"gpu_memory_utilization": "0.05"}, "gpu_memory_utilization"),
        ({"other_gib": "100"}, "other_gib"),
        ({"kv_capacity_tokens": "100"}, "kv_capacity_tokens"),
        ({"max_num_batched_tokens": "1"}, "max_num_batched_tokens"),
        ({"model": "meta-llama/Llama-2-7b-hf", "input_tokens": "131072"}, "input_tokens"),
        ({"model": "meta-llama/Llama-2-7b-hf", "gpu": "L4", "dtype": "float32"}, "dtype"),
        ({"model": "meta-llama/Llama-2-13b-hf", "gpu": "L4"}, "gpu"),
        ({"model": "meta-llama/Llama-2-70b-hf", "gpu": "L4"}, "model"),
    ],
)
def test_what_is_not_feasible_is_said_beside_what_makes_it_so(
    session: Session, changes: dict[str, str], beside: str
) -> None:
    started = _opt_on_h100(session)
    shown = document(started, read(started.controls(), (ASKED | changes).items()))
    assert shown["advice"]["feasible"] is False
    assert shown["beside"] == {beside: "no batch cap is feasible with this"}


def _opt_on_h100(session: Session) -> Session:
    """A session that has seen OPT-1.3B on an H100, and so starts from them."""
    seen = replace(
        session.calibration,
        models=(get_model("facebook/opt-1.3b"),),
        hardware=(get_hardware("H100"),),
    )
    return replace(session, calibration=seen)


def test_one_output_token_under_an_slo_on_tpot_names_remedies_that_work(
    client: httpx.Client,
) -> None:
    asked = ASKED | {"output_tokens": "1"}
    error = client.get("/api/view", params=asked).json()["errors"]["slo"]
    assert error.endswith("bound E2E or TTFT instead, or ask for 2 or more of them")
    for remedy in (
        {"slo": "e2e", "slo_ms": "9000"},
        {"slo": "ttft", "slo_ms": "9000"},
        {"output_tokens": "2"},
    ):
        assert client.get("/api/view", params=asked | remedy).json()["advice"]["feasible"]


def test_models_and_gpus_of_the_command_line_can_be_chosen_and_no_others(
    session: Session, run: Run, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    shape = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1000,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
        "torch_dtype": "float16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(shape))
    gpu = "name=Invented,flops=100T,bandwidth=1TB/s,memory=24GB"
    given = replace(session, models={str(folder): get_model(folder)}, gpus={gpu: get_hardware(gpu)})
    fields = given.controls()
    assert [field.default for field in fields[:2]] == [str(folder), gpu]
    shown = document(given, read(fields, {"slo_ms": "100"}.items()))
    outcome = run(*shlex.split(shown["command"])[1:], "--json")
    assert shown["advice"] == json.loads(outcome.out)
    with pytest.raises(FieldError):
        read(fields, {"model": str(tmp_path)}.items())
    with pytest.raises(FieldError):
        read(session.controls(), {"model": str(folder)}.items())


def test_no_choice_reads_a_file_of_the_same_name(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facebook/opt-1.3b").mkdir(parents=True)
    (tmp_path / "facebook/opt-1.3b/config.json").write_text("no JSON")
    monkeypatch.chdir(tmp_path)
    assert session.model("facebook/opt-1.3b").num_layers == 24


def test_a_port_in_use_is_one_line(run: Run, address: str) -> None:
    port = address.rpartition(":")[2]
    outcome = run("explore", "prior:step", "--port", port)
    assert outcome.status == 2
    assert outcome.err == (
        f"servefit: 127.0.0.1, port {port}: cannot listen there (Address already in use): give "
        "another --port or --host\n"
    )


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["model", "input_tokens", "epsilon", "slo", "rate", "x", ""]),
            st.text(max_size=30) | st.floats().map(str),
        ),
        max_size=4,
    )
)
def test_any_query_is_read_or_refused_with_reasons(
    session: Session, items: list[tuple[str, str]]
) -> None:
    fields = session.controls()
    errors, values = {}, {}
    try:
        values = read(fields, items)
    except FieldError as error:
        errors = error.errors
    assert bool(errors) != bool(values)
    assert all(text and "\n" not in text for text in errors.values())


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/cli/explore.py",
        "/static//etc/passwd",
        "/static/index.html",
        "/etc/passwd",
        "/export/..%2f..%2fetc%2fpasswd",
        "/api",
        "/%00",
    ],
)
def test_nothing_but_the_page_is_served(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.json() == {"errors": {"": "there is no such page"}}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_only_get_is_answered(client: httpx.Client, method: str) -> None:
    assert client.request(method, "/api/view").status_code == 405


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8765", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8765", 200),
        ("gpu-box:8765", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8765", 421),
        ("evil.example#127.0.0.1", 421),
        ("", 421),
    ],
)
def test_a_request_for_another_host_is_refused(
    client: httpx.Client, host: str, status: int
) -> None:
    assert client.get("/api/options", headers={"Host": host}).status_code == status


def test_a_host_is_read_without_its_port() -> None:
    assert host_of("[::1]:80") == "::1"
    assert host_of("Localhost.:80") == "localhost"


@pytest.mark.parametrize(
    "header",
    [
        "localhost:80@evil.example",
        "localhost:evil.example",
        "localhost:80:80",
        "localhost/x",
        "user@localhost",
        "[::1]evil.example",
        "[::1]:80.evil.example",
        "[::1",
        "::1",
        "[localhost]",
        "",
    ],
)
def test_what_is_not_a_host_and_a_port_is_no_host(header: str) -> None:
    assert host_of(header) is None


def test_pages_carry_a_policy_that_lets_nothing_in_from_outside(client: httpx.Client) -> None:
    for path in ("/", "/static/app.js", "/api/view", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


def test_an_unforeseen_fault_is_one_line(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*arguments: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("servefit.explore.app.document", fault)
    response = client.get("/api/view", params=ASKED | {"epsilon": "0.123"})
    assert response.status_code == 500
    message = "servefit could not work this out (ZeroDivisionError)"
    assert response.json() == {"errors": {"": message}}


def test_exports_are_of_the_view(client: httpx.Client) -> None:
    exported = client.get("/export/advice.json", params=ASKED)
    assert exported.headers["content-disposition"] == 'attachment; filename="advice.json"'
    assert exported.json() == view(client)["advice"]
    assert client.get("/export/advice.png", params=ASKED).content.startswith(b"\x89PNG")
    assert client.get("/export/report.html?input_tokens=-1").status_code == 422


def test_charts_come_in_light_and_dark_and_hold_no_data(client: httpx.Client) -> None:
    light = client.get("/api/charts?theme=light").json()
    dark = client.get("/api/charts?theme=dark").json()
    assert light.keys() == dark.keys() >= {"throughput", "tpot", "ttft", "e2e", "steps"}
    assert light["tpot"]["config"] != dark["tpot"]["config"]
    assert all("datasets" not in spec for spec in light.values())
    assert client.get("/api/charts?theme=<script>").status_code == 422


def test_more_caps_than_can_be_tried_at_once_are_said(client: httpx.Client) -> None:
    shown = view(client, input_tokens="1", output_tokens="2")
    assert "caps fit" in shown["warnings"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    "changes",
    [
        {"slo_ms": "500000", "epsilon": "0"},
        {"slo_ms": "500000", "epsilon": "0.1", "confidence": "0.5"},
        {"slo_ms": "500000", "epsilon": "0", "rule": "tolerance"},
        {"slo_ms": "9", "epsilon": "0"},
        {"slo": "", "epsilon": "0"},
    ],
)
def test_however_many_caps_fit_only_a_few_are_tried(
    session: Session, changes: dict[str, str]
) -> None:
    wide = {
        "input_tokens": "1",
        "max_num_batched_tokens": "10000000",
        "kv_capacity_tokens": "1000000000",
    }
    found = view_of(session, read(session.controls(), (wide | changes).items()))
    caps = found.problem.curve.cap
    assert caps[-1] > 1_000_000
    assert caps.size <= 7 * SOME_CAPS
    assert found.cap is not None
    beside = np.arange(max(found.cap - 1, 1), min(found.cap + 1, caps[-1]) + 1)
    assert set(beside.tolist()) <= set(caps.tolist())


def test_the_few_caps_hold_the_one_recommended_among_all(session: Session) -> None:
    few = {"input_tokens": "1", "max_num_batched_tokens": "60000", "kv_capacity_tokens": "10000000"}
    for changes in ({"slo_ms": "500000", "epsilon": "0"}, {"epsilon": "0.1"}, {"slo_ms": "9"}):
        found = view_of(session, read(session.controls(), (few | changes).items()))
        caps = found.problem.curve.cap
        assert caps.size < caps[-1] / 10
        terms = replace(found.question.terms, candidates=None)
        assert look(session.calibration, replace(found.question, terms=terms)).cap == found.cap


def test_a_thousand_different_requests_at_once_are_all_answered(address: str) -> None:
    # Without intervals: an answer takes a third of the time.
    quick = ASKED | {"confidence": "0.5", "kv_capacity_tokens": "40000"}

    queries = [quick | {"slo_ms": f"{3 + i / 200}"} for i in range(900)]
    queries += [quick | {"epsilon": f"wat{i}"} for i in range(100)]

    async def answer(query: dict[str, str]) -> tuple[int, str]:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        target = f"/api/view?{urlencode(query)}"
        writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    async def ask() -> list[tuple[int, str]]:
        return await asyncio.gather(*map(answer, queries))

    before_mib, start = resident_mib(), time.perf_counter()
    answers = asyncio.run(ask())
    spent_s, grown_mib = time.perf_counter() - start, resident_mib() - before_mib
    assert [status for status, _ in answers] == [200] * 900 + [422] * 100
    caps = [json.loads(text)["advice"]["batch_cap"] for _, text in answers[:900]]
    assert caps == sorted(caps)  # Each got its own answer: caps grow with the SLO.
    assert len(set(caps)) > 20
    held_mib = sum(len(text) for _, text in answers) / 2**20
    print(f"1,000 distinct requests: {spent_s:.1f} s, {grown_mib:.0f} MiB, answers {held_mib:.0f}")
    assert spent_s < 120
    assert grown_mib < 3 * held_mib + 200


def resident_mib() -> float:
    """Memory of this process, in which the server runs too."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_an_update_takes_a_fraction_of_a_second(
    client: httpx.Client, record_property: Callable[[str, object], None]
) -> None:
    view(client)
    times_s = []
    for i in range(30):
        start = time.perf_counter()
        view(client, slo_ms=f"{7 + i / 7:.4f}")
        times_s.append(time.perf_counter() - start)
    median_ms = 1e3 * statistics.median(times_s)
    print(f"an update takes {median_ms:.0f} ms (median of 30)")
    record_property("median_ms", median_ms)
    assert median_ms < 300  # A guard against seconds; the aim is 100 ms, see `make bench`.


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"GET /api/view?" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
def test_malformed_requests_get_a_4xx(address: str, request_text: bytes) -> None:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request_text)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 4"), answer[:80]
    assert b"Traceback" not in answer
