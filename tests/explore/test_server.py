from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest

from servefit.explore.app import application
from servefit.explore.guard import addresses, host_of, names_given
from servefit.explore.session import Session
from servefit.explore.specs import specs
from tests.cli.conftest import Run
from tests.explore.conftest import ASKED, Script, view


def test_a_port_in_use_is_one_line(run: Run, address: str) -> None:
    port = address.rpartition(":")[2]
    outcome = run("explore", "prior:step", "--port", port)
    assert outcome.status == 2
    assert outcome.err == (
        f"servefit: 127.0.0.1, port {port}: cannot listen there (Address already in use): give "
        "another --port or --host\n"
    )


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


@pytest.mark.parametrize(
    ("host", "bound", "shown"),
    [
        ("127.0.0.1", "127.0.0.1", ["http://127.0.0.1:80/"]),
        ("0.0.0.0", "0.0.0.0", ["http://127.0.0.1:80/", "http://gpu-box:80/"]),
        ("0", "0.0.0.0", ["http://127.0.0.1:80/", "http://gpu-box:80/"]),
        ("::", "::", ["http://[::1]:80/", "http://gpu-box:80/"]),
        ("::1", "::1", ["http://[::1]:80/"]),
        ("my-box", "10.0.0.7", ["http://my-box:80/"]),
    ],
)
def test_the_addresses_that_are_printed_are_answered(
    host: str, bound: str, shown: list[str]
) -> None:
    assert addresses(host, bound, 80, ["gpu-box"]) == shown


def test_allowed_hosts_are_names_without_ports() -> None:
    given = ["GPU-box:9811", "10.0.0.7", "10.0.0.7:80", "::2", "[::2]:80"]
    assert names_given(given) == ["gpu-box", "10.0.0.7", "10.0.0.7", "::2", "::2"]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--allow-host", "http://gpu-box/", "no host"), ("--allow-host", "", "no host"),
     ("--host", "", "--host is empty"), ("--host", "a..b", "a..b is no name of a host")],
)  # fmt: skip
def test_what_names_no_host_is_refused(run: Run, option: str, value: str, said: str) -> None:
    outcome = run("explore", "prior:step", "--port", "0", option, value)
    assert outcome.status == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://127.0.0.1:{port}/api/options", "127.0.0.1", 200),
        ("http://127.0.0.1:{port}", "127.0.0.1", 200),
        ("http://127.0.0.1:{port}/api/view?epsilon=-1", "127.0.0.1", 422),
        ("http://evil.example/api/options", "127.0.0.1", 421),
        ("http://127.0.0.1:{port}/api/options", "evil.example", 421),
        ("http://user@127.0.0.1/api/options", "127.0.0.1", 421),
    ],
)
def test_a_target_may_be_a_whole_url_of_this_page(
    address: str, target: str, host: str, status: int
) -> None:
    port = address.rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(port)), timeout=20) as connection:
        line = f"GET {target.format(port=port)} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        connection.sendall(line.encode())
        assert connection.recv(65536).startswith(f"HTTP/1.1 {status}".encode())


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
    assert client.get("/export/report.html?input_tokens=-1").status_code == 422


def test_the_exported_picture_is_of_the_view(client: httpx.Client) -> None:
    from PIL import Image

    def picture(**changes: str) -> np.ndarray[Any, Any]:
        exported = client.get("/export/advice.png", params=ASKED | changes).content
        return np.asarray(Image.open(io.BytesIO(exported)).convert("RGB"), int)

    drawn, other = picture(), picture(slo_ms="6")
    height, width, _ = drawn.shape
    assert width > 1000
    assert 400 < height < width
    for colour in ((0, 114, 178), (184, 79, 0), (181, 52, 138)):  # Prediction, cap and SLO.
        assert (np.abs(drawn - colour).max(axis=2) < 12).sum() > 150, colour
    assert (drawn == 255).all(axis=2).mean() > 0.6
    assert drawn.shape != other.shape or (drawn != other).any()


def test_the_charts_are_worked_out_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arguments: Any) -> dict[str, Any]:
        made.append(arguments[-1])
        time.sleep(0.05)
        return specs(*arguments)

    monkeypatch.setattr("servefit.explore.app.specs", counted)
    app = application(session, Script())

    async def ask() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            themes = ("light", "dark") * 10
            return await asyncio.gather(*(client.get(f"/api/charts?theme={t}") for t in themes))

    answers = asyncio.run(ask())
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(made) == ["dark", "light"]
    assert len({answer.content for answer in answers}) == 2


def test_charts_come_in_light_and_dark_and_hold_no_data(client: httpx.Client) -> None:
    light = client.get("/api/charts?theme=light").json()
    dark = client.get("/api/charts?theme=dark").json()
    assert light.keys() == dark.keys() >= {"throughput", "tpot", "ttft", "e2e", "steps"}
    assert light["tpot"]["config"] != dark["tpot"]["config"]
    assert all("datasets" not in spec for spec in light.values())
    assert client.get("/api/charts?theme=<script>").status_code == 422


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


def test_views_with_intervals_and_exports_at_once_leave_room_for_the_page(address: str) -> None:
    views = [f"/api/view?{urlencode(ASKED | {'slo_ms': f'{6 + i / 50}'})}" for i in range(60)]
    kinds = ("advice.png", "advice.json", "report.html", "advice.json")
    exports = [
        f"/export/{kinds[i % 4]}?{urlencode(ASKED | {'slo_ms': f'{7 + i / 4}'})}" for i in range(8)
    ]

    async def ask() -> tuple[list[httpx.Response], list[httpx.Response], float]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=f"http://{address}", timeout=110, limits=limits
        ) as client:
            await client.get("/api/charts")
            load = asyncio.gather(*map(client.get, [*views, *exports]))
            await asyncio.sleep(0.3)
            start = time.perf_counter()
            page = [await client.get(path) for path in ("/", "/vega.js", "/api/charts")]
            waited_s = time.perf_counter() - start
            assert not load.done()
            return await load, page, waited_s

    answers, page, waited_s = asyncio.run(ask())
    assert [answer.status_code for answer in (*answers, *page)] == [200] * (len(answers) + 3)
    caps = [answer.json()["advice"]["batch_cap"] for answer in answers[:60]]
    assert caps == sorted(caps)
    assert len(set(caps)) > 10
    for path, answer in zip(exports, answers[60:], strict=True):
        if "json" in path:
            asked = httpx.get(f"http://{address}{path.replace('export/advice.json', 'api/view')}")
            assert answer.json() == asked.json()["advice"]
    print(f"the page under 60 views and 8 exports: {waited_s:.1f} s")
    assert waited_s < 10


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
