"""One request against the stub server: exact times, and every misbehaviour."""

from __future__ import annotations

import asyncio
import re
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.profiling import client as client_module
from servefit.profiling.answer import Answer
from servefit.profiling.client import Client, Endpoint, base_url
from servefit.profiling.record import Ask, Record
from servefit.profiling.replies import message_of, retry_after
from servefit.profiling.server import EXTRAS, Server
from tests.stub_process import Stub, run

SERVER = Server("stub-model", token_ids=True, extras=tuple(EXTRAS))


def waited_s(stub: Stub) -> float:
    """Seconds that this thread and the stub waited for a core so far, by the Linux scheduler."""
    tasks = (f"self/task/{threading.get_native_id()}", f"{stub.process.pid}")
    return sum(int(Path(f"/proc/{t}/schedstat").read_text().split()[1]) for t in tasks) / 1e9


def send(
    stub: Stub,
    output_tokens: int = 20,
    *,
    endpoint: Endpoint = "completions",
    key: str | None = None,
    count: int = 1,
) -> list[Record]:
    """Send requests one after the other over one connection."""
    ask = Ask(8, output_tokens)
    server = Server("stub-model", endpoint=endpoint, extras=SERVER.extras)
    prompt = '"one two three four five six seven"' if endpoint == "chat" else "[5,6,7,8,9,10,11,12]"

    async def work() -> list[Record]:
        records = [Record(ask, 0.0) for _ in range(count)]
        async with Client(stub.url, api_key=key) as client:
            for record in records:
                await client.generate(endpoint, server.body(prompt, ask), record)
        return records

    return run(work())


def test_times_agree_with_the_servers_log_within_a_millisecond(stub: Stub) -> None:
    """In the median over requests, sent one after the other on one connection.

    Compared are, for each request, TTFT, E2E and mean ITL: the client's from its bytes handed to
    the socket to the arrival of chunks, the server's from the request read to chunks written. What
    either process waited for a core that other programs ran on is no error of the client and is
    taken off; of the requests the half with the shorter waits counts.
    """
    stub.script(step_s=0.002, prefill_token_s=0.002)
    records, waits_s = [], []

    async def work() -> None:
        async with Client(stub.url) as client:
            for _ in range(41):
                record, before_s = Record(Ask(8, 20), 0.0), waited_s(stub)
                body = SERVER.body("[5,6,7,8,9,10,11,12]", record.ask)
                await client.generate("completions", body, record)
                records.append(record)
                waits_s.append(waited_s(stub) - before_s)

    run(work())
    errors: list[tuple[float, dict[str, float]]] = []
    for record, logged, wait_s in zip(records, stub.log(), waits_s, strict=True):
        sent = [at_s for at_s, _ in logged["chunks"]]
        assert record.outcome == "completed"
        assert record.chunk_tokens == [1] * 20
        assert record.ttft_s is not None
        assert record.e2e_s is not None
        differences = {
            "ttft": record.ttft_s - (sent[0] - logged["received"]),
            "e2e": record.e2e_s - (sent[-1] - logged["received"]),
            "itl": (record.chunk_s[-1] - record.chunk_s[0] - (sent[-1] - sent[0])) / 19,
        }
        errors.append((wait_s, {k: abs(v) - wait_s for k, v in differences.items()}))
    quiet = sorted(errors[1:], key=lambda e: e[0])[:20]  # the first one opened the connection
    for name in ("ttft", "e2e", "itl"):
        median = statistics.median(error[name] for _, error in quiet)
        assert median < 1e-3, f"{name} is off by {median * 1e3:.2f} ms"


def test_tpot_is_e2e_less_ttft_over_the_other_tokens() -> None:
    record = Record(Ask(1, 11), 0.0, sent_s=1.0, first_token_s=1.5, last_token_s=3.5)
    record.output_tokens = 11
    assert record.tpot_s == pytest.approx(0.2)
    record.output_tokens = 1
    assert record.tpot_s is None


@pytest.mark.parametrize(
    ("script", "tokens", "empty", "reasoning"),
    [
        ({"tokens_per_chunk": 7}, [7, 7, 6], 0, 0),
        ({"first_chunk": "empty"}, [1] * 20, 1, 0),
        ({"newline": "\r\n", "split_data": True, "comments": True}, [1] * 20, 0, 0),
        ({"usage": "final"}, [None] * 20, 0, 0),
    ],
    ids=["several tokens a chunk", "empty first chunk", "CRLF and comments", "usage at the end"],
)
def test_odd_streams_are_counted_right(
    stub: Stub, script: dict[str, Any], tokens: list[int | None], empty: int, reasoning: int
) -> None:
    stub.script(**script)
    (record,) = send(stub)
    assert record.outcome == "completed", record.detail
    assert (record.input_tokens, record.output_tokens) == (8, 20)
    assert record.chunk_tokens == tokens
    assert (record.empty_chunks, record.reasoning_chunks) == (empty, reasoning)
    assert record.finish_reason == "length"


def test_reasoning_counts_as_output_from_its_first_token(stub: Stub) -> None:
    stub.script(first_chunk="reasoning")
    (record,) = send(stub, 10, endpoint="chat")
    assert record.outcome == "completed"
    assert record.reasoning_chunks == 3
    assert record.chunk_tokens == [1] * 10
    assert record.first_token_s == record.chunk_s[0]


def test_missing_usage_leaves_counts_unknown(stub: Stub) -> None:
    stub.script(usage="none")
    (record,) = send(stub)
    assert record.outcome == "completed"
    assert (record.input_tokens, record.output_tokens) == (None, None)
    assert record.chunk_tokens == [None] * 20


def test_output_shorter_than_asked_is_seen(stub: Stub) -> None:
    stub.script(faults=[{"kind": "short", "at": [0]}])
    (record,) = send(stub)
    assert (record.outcome, record.output_tokens) == ("completed", 10)


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("error_event", "error_event", "engine died"),
        ("cut", "cut", "payload|reset|disconnected"),
        ("truncated_json", "bad_json", "choi"),
        ("wrong_content_type", "content_type", "text/html"),
        ("429", "http_429", "try later"),
        ("503", "http_503", "try later"),
        ("500", "http_500", "try later"),
    ],
)
def test_failures_are_recorded_by_kind_and_the_next_request_works(
    stub: Stub, kind: str, error: str, words: str
) -> None:
    stub.script(faults=[{"kind": kind, "at": [0]}])
    failed, completed = send(stub, count=2)
    assert (failed.outcome, failed.error) == ("failed", error)
    assert re.search(words, failed.detail or "", re.IGNORECASE), failed.detail
    assert failed.finished_s is not None
    assert completed.outcome == "completed"
    assert failed.retry_after_s == (0.1 if kind == "429" else None)


def test_a_server_that_is_not_there_is_a_connect_failure(stub: Stub) -> None:
    gone = Stub("http://127.0.0.1:9", stub.process)
    (record,) = send(gone)
    assert (record.outcome, record.error) == ("failed", "connect")


@pytest.mark.parametrize("kind", ["hang", "mute", "slow_loris"])
def test_a_request_that_never_ends_can_be_cancelled_and_the_server_sees_it(
    stub: Stub, kind: str
) -> None:
    stub.script(faults=[{"kind": kind, "at": [0]}])

    async def work() -> Record:
        record = Record(Ask(8, 20), 0.0)
        async with Client(stub.url) as client:
            body = SERVER.body("[5,6,7,8,9,10,11,12]", record.ask)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.generate("completions", body, record), 0.2)
            await asyncio.sleep(0.2)
        return record

    assert run(work()).outcome == "cancelled"
    assert stub.log()[0]["outcome"] == "aborted"


def test_the_api_key_is_sent_and_never_shown(stub: Stub) -> None:
    stub.script(api_key="right-key")
    (record,) = send(stub, key="right-key")
    assert record.outcome == "completed"
    stub.script(api_key="another")  # the stub's refusal repeats the key that it was given
    (record,) = send(stub, key="wrong-key")
    assert record.error == "http_401"
    assert record.detail is not None
    assert "wrong-key" not in record.detail
    assert "***" in record.detail


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host",
        "http://",
        "http://user:secret@host",
        "http://host/v1?key=secret",
        "http://user:secret@[::1",
        "http://user:secret@host:abc",
    ],
)
def test_addresses_that_are_none_or_hold_a_secret_are_refused(url: str) -> None:
    with pytest.raises(ServefitError) as error:
        base_url(url)
    assert "secret" not in str(error.value).removeprefix(url) or "leak a secret" in str(error.value)
    assert "user:secret" not in str(error.value)
    assert "key=secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://[::1", "malformed"),
        ("http://host:99999", "port"),
        ("http://host:abc", "port"),
        ("http://host:0", "port"),
        ("http://ho st:8000", "malformed"),
        ("http://host:8000/v1/completions", "base URL, http://host:8000$"),
        ("http://host/llm/v1/chat/completions/", "base URL, http://host/llm$"),
        ("http://host/v1/models", "base URL, http://host$"),
    ],
)
def test_mistaken_addresses_are_named_with_the_remedy(url: str, words: str) -> None:
    with pytest.raises(ServefitError, match=words) as error:
        base_url(url)
    assert str(error.value).startswith(f"{url}: ")


def test_a_metrics_address_that_is_none_is_a_mistake_of_the_user() -> None:
    async def work() -> None:
        async with Client("http://127.0.0.1:9") as client:
            await client.query("http://[::1/metrics")

    with pytest.raises(ServefitError, match=r"^http://\[::1/metrics: is no address"):
        run(work())


@pytest.mark.parametrize("count", [-5, 10**400, True, 3.5, "7"])
def test_a_count_that_can_be_none_fails_the_request(stub: Stub, count: Any) -> None:
    stub.script(completion_tokens=count)
    (record,) = send(stub)
    assert (record.outcome, record.error) == ("failed", "bad_json")
    assert "completion_tokens" in (record.detail or "")


def test_a_count_that_falls_leaves_the_tokens_of_a_chunk_unknown() -> None:
    record = Record(Ask(1, 9), 0.0)
    answer = Answer(record)
    for count in (4, 2, 9):
        event = f'{{"choices":[{{"text":"w"}}],"usage":{{"completion_tokens":{count}}}}}'
        answer.feed(f"data: {event}\n\n".encode(), 1.0)
    assert (record.chunk_tokens, record.output_tokens) == ([4, None, 7], 9)


def test_a_connection_closed_without_a_word_costs_no_request(stub: Stub) -> None:
    """Each request after the first goes over a connection that is then closed, 0.1 s later."""
    stub.script(connection="drop")
    records = send(stub, 3, count=5)
    assert {r.outcome for r in records} == {"completed"}, records[1].detail
    assert [r.reconnects for r in records] == [0, 1, 1, 1, 1]
    assert [r["outcome"] for r in stub.log()] == ["done"] * 5
    for record, logged in zip(records, stub.log(), strict=True):
        assert record.sent_s is not None
        # Sent is when it was sent again: what was before is no part of its TTFT.
        assert 0 < logged["received"] - record.sent_s < 0.05


def test_a_connection_cut_within_an_answer_is_not_asked_again(stub: Stub) -> None:
    stub.script(faults=[{"kind": "cut", "at": [1]}])
    first, second = send(stub, count=2)
    assert first.outcome == "completed"
    assert (second.error, second.reconnects) == ("cut", 0)
    assert len(stub.log()) == 2


def test_a_stream_left_open_ends_with_done_and_is_soon_not_waited_for(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "DRAIN_S", 0.1)
    monkeypatch.setattr(client_module, "LONG_DRAIN_S", 0.25)
    stub.script(leaves_open=True)
    records, took_s = [Record(Ask(8, 5), 0.0) for _ in range(6)], []

    async def work() -> None:
        async with Client(stub.url) as client:
            for record in records:
                begun_s = time.perf_counter()
                body = SERVER.body("[5,6,7,8,9,10,11,12]", record.ask)
                await client.generate("completions", body, record)
                took_s.append(time.perf_counter() - begun_s)

    run(work())
    assert {r.outcome for r in records} == {"completed"}
    assert all(r.finished_s - r.last_token_s < 0.05 for r in records)  # type: ignore[operator]
    assert took_s[0] >= 0.1
    assert max(took_s[4:]) < 0.1  # the first stream was then open for 0.25 s


def test_connections_are_used_again_after_done(stub: Stub) -> None:
    ports: set[int] = set()

    async def work() -> None:
        nonlocal ports
        async with Client(stub.url) as client:
            for _ in range(10):
                record = Record(Ask(8, 3), 0.0)
                body = SERVER.body("[5,6,7,8,9,10,11,12]", record.ask)
                await client.generate("completions", body, record)
                connections = client.session.connector._conns.values()  # type: ignore[union-attr]
                ports |= {
                    protocol.transport.get_extra_info("sockname")[1]  # type: ignore[union-attr]
                    for pool in connections
                    for protocol, _ in pool
                }

    run(work())
    assert len(ports) == 1


def test_a_compressed_stream_is_named(stub: Stub) -> None:
    stub.script(gzip=True)
    (record,) = send(stub)
    assert (record.outcome, record.error) == ("failed", "content_encoding")
    assert "gzip" in (record.detail or "")


def test_a_redirect_is_named_and_not_followed(stub: Stub) -> None:
    stub.script(page_faults={"/v1/completions": [301]})
    (record,) = send(stub)
    assert (record.outcome, record.error) == ("failed", "http_301")
    assert "redirects to https://elsewhere.example" in (record.detail or "")
    assert stub.log() == []


def test_addresses_are_taken_with_and_without_v1() -> None:
    assert base_url("http://host:8000/v1/") == "http://host:8000"
    assert base_url("host:8000") == "http://host:8000"
    assert base_url("https://gateway/llm/v1") == "https://gateway/llm"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "2.5"}, 2.5),
        ({"Retry-After": "1e9"}, 60.0),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
        (
            {
                "Retry-After": "Wed, 21 Oct 2015 07:28:05 GMT",
                "Date": "Wed, 21 Oct 2015 07:28:00 GMT",
            },
            5.0,
        ),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_servers_clock(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize("start", [0, 70, 78])
@pytest.mark.parametrize("event", ["data: {}\n\n", 'data: {{"choices": ["{}"]}}\n\n'])
def test_garbage_that_repeats_the_key_is_told_without_it(start: int, event: str) -> None:
    record = Record(Ask(1, 1), 0.0)
    Answer(record).feed(event.format("x" * start + "top-secret-key").encode(), 1.0)
    assert record.error == "bad_json"
    told = Client("http://127.0.0.1:9", api_key="top-secret-key").redact(record.detail or "")
    assert "***" in told
    assert "top" not in told


@pytest.mark.parametrize("event", ["[" * 100_000, '{"choices": ' + "[" * 100_000])
def test_nesting_without_end_fails_the_request_alone(event: str) -> None:
    record = Record(Ask(1, 1), 0.0)
    Answer(record).feed(f"data: {event}\n\n".encode(), 1.0)
    assert (record.outcome, record.error) == ("failed", "bad_json")
    assert message_of(event) == event
