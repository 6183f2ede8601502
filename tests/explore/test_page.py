from __future__ import annotations

import asyncio
import json
import shlex
import socket
from dataclasses import replace

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit.explore.answer import SOME_CAPS, Session, view_of
from servefit.explore.app import host_of
from servefit.explore.fields import FieldError, read
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
    ],
)
def test_every_control_changes_the_answer(client: httpx.Client, name: str, value: str) -> None:
    before, after = view(client), view(client, **{name: value})
    assert before["advice"] != after["advice"]
    assert before["command"] != after["command"] or name == "workload"


def test_the_correlation_counts_where_lengths_vary(client: httpx.Client) -> None:
    mixed = {"cv_input": "1", "cv_output": "1"}
    before, after = view(client, **mixed), view(client, **mixed, correlation="0.5")
    assert before["advice"] != after["advice"]


def test_every_control_is_tested(session: Session) -> None:
    marks = test_every_control_changes_the_answer.pytestmark  # type: ignore[attr-defined]
    tested = {name for mark in marks for name, _ in mark.args[1]} | {"correlation"}
    assert tested == {field.name for field in session.controls()}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("input_tokens", "-5", "outside 1 to 131072"),
        ("input_tokens", "1e999", "outside"),
        ("input_tokens", "9" * 180, "outside"),
        ("input_tokens", "9" * 500, "characters"),
        ("input_tokens", "nan", "outside"),
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
        ({"model": "meta-llama/Llama-2-70b-hf", "gpu": "L4"}, "model"),
        ({"slo": "e2e", "slo_ms": "3000", "epsilon": "0.99"}, "epsilon"),
    ],
)
def test_what_is_not_feasible_is_said_beside_what_makes_it_so(
    client: httpx.Client, changes: dict[str, str], beside: str
) -> None:
    shown = view(client, **changes)
    assert shown["advice"]["feasible"] is False or changes.get("epsilon")  # type: ignore[index]
    if not shown["advice"]["feasible"]:  # type: ignore[index]
        assert set(shown["beside"]) == {beside}  # type: ignore[arg-type]


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
    wide = {"input_tokens": "1", "max_num_batched_tokens": "1e7", "kv_capacity_tokens": "1e9"}
    found = view_of(session, read(session.controls(), (wide | changes).items()))
    caps = found.problem.curve.cap
    assert caps[-1] > 1_000_000
    assert caps.size <= 7 * SOME_CAPS
    assert found.cap is not None
    beside = np.arange(max(found.cap - 1, 1), min(found.cap + 1, caps[-1]) + 1)
    assert set(beside.tolist()) <= set(caps.tolist())


def test_the_few_caps_hold_the_one_recommended_among_all(session: Session) -> None:
    few = {"input_tokens": "1", "max_num_batched_tokens": "60000", "kv_capacity_tokens": "1e7"}
    for changes in ({"slo_ms": "500000", "epsilon": "0"}, {"epsilon": "0.1"}, {"slo_ms": "9"}):
        found = view_of(session, read(session.controls(), (few | changes).items()))
        caps = found.problem.curve.cap
        assert caps.size < caps[-1] / 10
        terms = replace(found.question.terms, candidates=None)
        assert look(session.calibration, replace(found.question, terms=terms)).cap == found.cap


def test_a_thousand_requests_at_once_are_all_answered(address: str) -> None:
    async def ask() -> list[int]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            queries = [ASKED | {"epsilon": f"{i % 10 / 20}"} for i in range(900)]
            queries += [ASKED | {"epsilon": "wat"}] * 100
            url = f"http://{address}/api/view"
            answers = await asyncio.gather(*(client.get(url, params=q) for q in queries))
        return [answer.status_code for answer in answers]

    statuses = asyncio.run(ask())
    assert statuses == [200] * 900 + [422] * 100


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
