"""What is found out about a server, and how prompts are written for it."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.profiling.client import Client
from servefit.profiling.discover import discover
from servefit.profiling.engines import read_metrics, recognise
from servefit.profiling.patience import OutOfTimeError, Patience
from servefit.profiling.probe import make_prompts, probe
from servefit.profiling.prometheus import parse_metrics
from servefit.profiling.record import Ask, Record
from servefit.profiling.replies import Reply
from servefit.profiling.server import EXTRAS, Server
from tests.stub_process import Stub, run


def look(stub: Stub, given: dict[str, Any] | None = None, **options: Any) -> Server:
    async def work() -> Server:
        async with Client(stub.url) as client:
            server = await discover(client, given=given)
            return await probe(client, server, **options)

    return run(work())


@pytest.mark.parametrize(
    ("metrics", "seats", "engine", "known"),
    [
        ("vllm_v0", 8, "vllm", {"engine_version": "0.99.1", "kv_capacity_tokens": 16000}),
        (
            "vllm_v1",
            8,
            "vllm",
            {
                "num_gpu_blocks": 1000,
                "block_size": 16,
                "gpu_memory_utilization": 0.9,
                "prefix_caching": False,
            },
        ),
        ("sglang", 8, "sglang", {"max_num_seqs": 8, "kv_capacity_tokens": 16000}),
        ("llamacpp", 8, "llama.cpp", {"max_num_seqs": 8, "engine_version": "b5163-08d0baac"}),
        ("tgi", None, "tgi", {"engine_version": "2.0.1"}),
        ("trtllm", 8, "tensorrt-llm", {"max_num_seqs": 8, "kv_capacity_tokens": 16000}),
    ],
)
def test_each_engine_is_recognised_and_tells_its_settings(
    stub: Stub, metrics: str, seats: int | None, engine: str, known: dict[str, Any]
) -> None:
    stub.script(metrics=metrics, seats=seats)
    server = look(stub)
    assert (server.model, server.engine, server.max_model_len) == ("stub-model", engine, 4096)
    assert {name: server.settings.get(name) for name in known} == known
    assert "gpu" in server.unknown
    assert server.unknown["gpu"] == "--gpu"


def test_a_server_without_metrics_is_unknown_and_nothing_is_invented(stub: Stub) -> None:
    stub.script(metrics=None)
    server = look(stub, {"max_num_seqs": 4})
    assert server.engine is None
    assert server.metrics_url is None
    assert server.settings == {"max_num_seqs": 4}


def test_what_is_told_must_not_contradict_the_server(stub: Stub) -> None:
    stub.script(metrics="sglang", seats=8)
    with pytest.raises(ServefitError, match="--max-num-seqs 16: the server says 8"):
        look(stub, {"max_num_seqs": 16})


def test_an_engine_that_contradicts_the_server_is_refused(stub: Stub) -> None:
    stub.script(metrics="vllm_v1")
    for told in ("sglang", "my-fork"):
        with pytest.raises(ServefitError, match=f"--engine {told}: the server says vllm"):
            look(stub, {"engine": told})
    assert look(stub, {"engine": "vLLM"}).settings["engine"] == "vllm"
    stub.script(metrics="llamacpp", seats=8)
    assert look(stub, {"engine": "llamacpp"}).settings["engine"] == "llama.cpp"
    stub.script(metrics=None)  # nobody can tell
    assert look(stub, {"engine": "my-fork"}).settings["engine"] == "my-fork"


@pytest.mark.parametrize("length", [0, -1, None, "long", True])
def test_a_longest_request_of_no_tokens_is_unknown(stub: Stub, length: Any) -> None:
    stub.script(max_model_len=length)
    assert look(stub).max_model_len is None


def test_a_card_without_its_longest_request_leaves_what_is_known_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = {
        "/v1/models": '{"data": [{"id": "m", "max_model_len": null}]}',
        "/info": '{"max_total_tokens": 4000, "model_id": "m"}',
    }
    assert _discovered(pages, monkeypatch).max_model_len == 4000


@pytest.mark.parametrize(
    ("script", "token_ids", "missing", "note"),
    [
        ({}, True, [], None),
        ({"token_ids": False}, False, [], None),
        ({"unknown_fields": ["ignore_eos"]}, True, ["ignore_eos"], "ignore_eos is refused"),
        ({"unknown_fields": ["stream_options"]}, True, ["usage", "chunk_usage"], "no usage"),
        (
            {"unknown_fields": ["continuous_usage_stats", "min_tokens"]},
            True,
            ["chunk_usage", "min_tokens"],
            "ITL is per chunk",
        ),
        ({"usage": "final"}, True, [], "ITL is per chunk"),
    ],
    ids=[
        "all",
        "text only",
        "strict fields",
        "no stream options",
        "no usage per chunk",
        "usage at the end",
    ],
)
def test_the_probe_finds_what_the_server_accepts(
    stub: Stub, script: dict[str, Any], token_ids: bool, missing: list[str], note: str | None
) -> None:
    stub.script(**script)
    server = look(stub)
    assert server.endpoint == "completions"
    assert server.token_ids is token_ids
    assert set(server.extras) == set(EXTRAS) - set(missing)
    assert (note is None) == (not server.notes)
    assert note is None or note in " ".join(server.notes)


def test_a_server_that_refuses_everything_is_named_with_its_reason(stub: Stub) -> None:
    stub.script(faults=[{"kind": "500", "every": 1}])
    with pytest.raises(ServefitError, match="HTTP 500: try later"):
        look(stub)


BUSY = {"/v1/models": [503, 429], "/metrics": [503, 500], "/version": [502]}


def test_what_fails_for_a_moment_is_asked_again(stub: Stub) -> None:
    stub.script(page_faults=BUSY, faults=[{"kind": "503", "at": [0]}, {"kind": "cut", "at": [1]}])
    server = look(stub)
    assert (server.engine, server.token_ids) == ("vllm", True)
    assert server.settings["engine_version"] == "0.99.1"
    assert set(server.extras) == set(EXTRAS)
    assert [r["outcome"] for r in stub.log()] == ["503", "cut", "done"]


@pytest.mark.parametrize("kind", ["503", "429", "cut", "truncated_json", "error_event"])
def test_a_failure_while_the_form_of_requests_is_found_out_changes_no_form(
    stub: Stub, kind: str
) -> None:
    fault = {"kind": kind, "at": [0, 2, 4]}
    stub.script(unknown_fields=["min_tokens"], faults=[fault], tokenize=None)
    server = look(stub)
    assert server.token_ids
    assert set(server.extras) == set(EXTRAS) - {"min_tokens"}
    stub.script(token_ids=False, faults=[fault], tokenize=None)

    async def work() -> int | None:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            prompts = await make_prompts(client, server, random.Random(1))
            record = Record(Ask(50, 1), 0.0)
            await client.generate(
                server.endpoint, server.body(prompts.make(50), record.ask), record
            )
            return record.input_tokens

    assert run(work()) == 50


def test_a_pause_that_the_server_asks_for_is_kept(stub: Stub) -> None:
    stub.script(page_faults={"/v1/models": [429] * 4})
    said: list[str] = []

    async def work() -> float:
        begun_s = time.perf_counter()
        async with Client(stub.url) as client:
            await discover(client, patience=Patience(client, report=said.append))
        return time.perf_counter() - begun_s

    assert run(work()) >= 0.4
    assert said == [f"/v1/models: HTTP 429; asking again in 0.{n} s" for n in (1, 1, 1, 2)]


def test_patience_ends_with_one_line(stub: Stub) -> None:
    stub.script(page_faults={"/v1/models": [503] * 1000})
    with pytest.raises(ServefitError, match=r"HTTP 503 .*too busy or not ready"):
        look(stub)
    stub.script(faults=[{"kind": "503", "every": 1}])
    with pytest.raises(ServefitError, match="/v1/completions: http_503: HTTP 503: try later"):
        look(stub)
    assert {r["prompt_head"][0] for r in stub.log()} == {"["}  # no other form was tried


def test_patience_ends_with_the_time_of_the_campaign(stub: Stub) -> None:
    stub.script(page_faults={"/v1/models": [503] * 1000})

    async def work() -> None:
        async with Client(stub.url) as client:
            await discover(client, patience=Patience(client, time.perf_counter() + 0.2))

    begun_s = time.perf_counter()
    with pytest.raises(OutOfTimeError):
        run(work())
    assert time.perf_counter() - begun_s < 0.6


def test_a_proxy_that_fails_at_unknown_pages_costs_little_and_is_told_once_each(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = ["/metrics", "/version", "/get_server_info", "/server_info", "/props", "/info"]
    pages += ["/server_info?config_format=json", "/tokenize"]
    stub.script(page_faults={page: [502] * 1000 for page in pages})
    said: list[str] = []

    async def work() -> float:
        begun_s = time.perf_counter()
        async with Client(stub.url) as client:
            patience = Patience(client, report=said.append)
            server = await discover(client, patience=patience)
            server = await probe(client, server, patience=patience)
            await make_prompts(client, server, random.Random(1), patience=patience)
        return time.perf_counter() - begun_s

    assert run(work()) < 0.3 + 0.3  # once OPTIONAL_PATIENCE_S, and the requests
    assert len(said) == len({text.partition(":")[0] for text in said})
    assert "/metrics: HTTP 502; asking again in 0.0 s" in said


def test_token_ids_that_a_server_fails_at_come_with_what_to_try(stub: Stub) -> None:
    stub.script(faults=[{"kind": "500", "every": 1}])
    with pytest.raises(ServefitError, match=r"HTTP 500: .*token ids, try --prompts text"):
        look(stub)
    with pytest.raises(ServefitError) as failure:
        look(stub, token_ids=False)
    assert "--prompts" not in str(failure.value)


def test_metrics_that_stay_away_are_named(stub: Stub) -> None:
    stub.script(page_faults={"/metrics": [503] * 1000})
    server = look(stub)
    assert server.metrics_url is None
    assert "/metrics answers HTTP 503" in server.notes[0]


def test_a_server_that_is_not_there_is_given_up_at_once() -> None:
    async def work() -> None:
        async with Client("http://127.0.0.1:9") as client:
            await discover(client)

    begun_s = time.perf_counter()
    with pytest.raises(ServefitError, match="no answer"):
        run(work())
    assert time.perf_counter() - begun_s < 1.0


def test_a_server_that_hangs_at_the_first_request_is_given_up(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.profiling.patience.ANSWER_TIMEOUT_S", 0.3)
    stub.script(faults=[{"kind": "mute", "every": 1}])
    with pytest.raises(ServefitError, match="the server hangs"):
        look(stub)


def test_the_form_of_prompts_may_be_chosen(stub: Stub) -> None:
    async def found(token_ids: bool | None) -> Server:
        async with Client(stub.url) as client:
            return await probe(client, await discover(client), token_ids=token_ids)

    assert [run(found(form)).token_ids for form in (None, True, False)] == [True, True, False]
    stub.script(token_ids=False)
    assert not run(found(None)).token_ids
    with pytest.raises(ServefitError, match="/v1/completions: "):
        run(found(True))


@pytest.mark.parametrize("tokenizer", ["vllm", "llamacpp", "tgi", None])
@pytest.mark.parametrize("chat", [None, True])
def test_text_prompts_have_exactly_the_tokens_asked_for(
    stub: Stub, tokenizer: str | None, chat: bool | None
) -> None:
    stub.script(token_ids=False, tokenize=tokenizer, step_s=0.0002, metrics=None)
    wanted = [5, 17, 64, 300]

    async def work() -> list[Record]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client), chat=chat)
            prompts = await make_prompts(client, server, random.Random(3))
            records = [Record(Ask(n, 1), 0.0) for n in wanted]
            for record in records:
                body = server.body(prompts.make(record.ask.input_tokens), record.ask)
                await client.generate(server.endpoint, body, record)
            return records

    assert [record.input_tokens for record in run(work())] == wanted


def test_prompts_differ_so_that_no_prefix_is_cached(stub: Stub) -> None:
    async def work() -> list[str]:
        async with Client(stub.url) as client:
            server = await probe(client, await discover(client))
            prompts = await make_prompts(client, server, random.Random(3))
            return [prompts.make(32) for _ in range(50)]

    made = run(work())
    assert all(len(json.loads(prompt)) == 32 for prompt in made)
    assert len({json.dumps(json.loads(prompt)[:8]) for prompt in made}) == 50


def test_a_wrong_key_is_named_without_the_key(stub: Stub) -> None:
    stub.script(api_key="right")

    async def work() -> None:
        async with Client(stub.url, api_key="wrong-secret") as client:
            await discover(client)

    with pytest.raises(ServefitError, match=r"401.*SERVEFIT_API_KEY") as error:
        run(work())
    assert "wrong-secret" not in str(error.value)


def test_exposition_text_is_read_with_labels_exponents_and_timestamps() -> None:
    text = (
        '# HELP x help\nx{a="1",b="say \\"hi\\""} 1.5e+06\nx_total 3 1700000000\n'
        'nonsense\ny{} NaN\nz{le="+Inf"} 4\n'
    )
    samples = parse_metrics(text)
    assert [(s.name, dict(s.labels)) for s in samples] == [
        ("x", {"a": "1", "b": 'say "hi"'}),
        ("x_total", {}),
        ("y", {}),
        ("z", {"le": "+Inf"}),
    ]
    assert samples[0].value == 1.5e6
    assert [s.name for s in parse_metrics(text, {"z"})] == ["z"]


def test_engines_behind_one_address_are_summed_and_other_models_left_out() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a"} 3\n'
        'vllm:num_requests_running{engine="1",model_name="a"} 4\n'
        'vllm:num_requests_running{engine="0",model_name="b"} 50\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.4\n'
    )
    assert recognise(text) == "vllm"
    values = read_metrics(text, "vllm", "a")
    assert values["running"] == 7
    assert values["kv_usage"] == pytest.approx(0.3)


def cache_config(engine: int, blocks: object, more: str = "") -> str:
    labels = f'engine="{engine}",num_gpu_blocks="{blocks}",block_size="16"{more}'
    return (
        f'vllm:cache_config_info{{{labels}}} 1\nvllm:num_requests_running{{engine="{engine}"}} 0\n'
    )


@pytest.mark.parametrize(
    ("blocks", "more", "known"),
    [
        ([500], "", (500, 8000, None)),
        ([1000, 1000], "", (1000, 16000, 2)),  # vLLM: the sum, in each series
        ([500, 400], "", (900, 14400, 2)),
        ([1000, 1000], ',kv_cache_size_tokens="7000"', (1000, 14000, 2)),  # of each engine
        ([500], ',kv_cache_size_tokens="None"', (500, 8000, None)),
        ([500, "None"], "", (500, 8000, 2)),
    ],
)
def test_the_kv_cache_of_several_engines_is_the_whole_server_s(
    blocks: list[object],
    more: str,
    known: tuple[int, int, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "".join(cache_config(i, b, more) for i, b in enumerate(blocks))
    pages = {"/v1/models": '{"data": [{"id": "m"}]}', "/metrics": text}
    settings = _discovered(pages, monkeypatch).settings
    names = ("num_gpu_blocks", "kv_capacity_tokens", "data_parallel_size")
    assert tuple(settings.get(name) for name in names) == known


def test_seats_of_several_engines_are_those_of_all_and_no_law_is_promised(stub: Stub) -> None:
    stub.script(engines=2)
    server = look(stub, {"max_num_seqs": 4})
    assert (server.settings["max_num_seqs"], server.engines, server.seats) == (4, 2, 8)
    assert "2 data-parallel engines share the load" in server.notes[0]


STATES = {"internal_states": [{"effective_max_running_requests_per_dp": 48}]}


@pytest.mark.parametrize(
    ("more", "engines", "seats", "kv_tokens"),
    [
        ({}, 1, 64, 9000),
        ({"max_running_requests": None}, 1, None, 9000),
        ({"max_running_requests": None, **STATES}, 1, 48, 9000),
        ({"dp_size": 2}, 2, None, None),  # of one, or of all?
        ({"dp_size": 2, **STATES}, 2, 96, None),
        ({"internal_states": [7]}, 1, 64, 9000),
    ],
)
def test_sglang_s_seats_are_taken_from_where_they_are_sure(
    more: dict[str, Any],
    engines: int,
    seats: int | None,
    kv_tokens: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = {"max_running_requests": 64, "max_total_num_tokens": 9000, "dp_size": 1, **more}
    pages = {"/v1/models": '{"data": [{"id": "m"}]}', "/get_server_info": json.dumps(info)}
    server = _discovered(pages, monkeypatch)
    assert (server.engines, server.seats) == (engines, seats)
    assert server.settings.get("kv_capacity_tokens") == kv_tokens


@pytest.mark.parametrize("suffix", ["", "_total"])
@pytest.mark.parametrize("prefix", ["", "gpu_"])
def test_prefix_cache_counters_have_many_names(prefix: str, suffix: str) -> None:
    text = (
        f"vllm:{prefix}prefix_cache_queries{suffix} 20\nvllm:{prefix}prefix_cache_hits{suffix} 5\n"
    )
    assert read_metrics(text, "vllm") == {"cache_queries": 20, "cache_hits": 5}


def test_triton_s_queue_time_is_not_taken_for_the_engine_s() -> None:
    text = (
        'nv_inference_queue_duration_us{model="m"} 5\n'
        'nv_trt_llm_request_metrics{request_type="scheduled"} 3\n'
        'nv_trt_llm_request_metrics{request_type="waiting"} 2\n'
    )
    assert read_metrics(text, "tensorrt-llm") == {"running": 3, "waiting": 2}


@pytest.mark.parametrize("odd", ["NaN", "+Inf", "-Inf", "-0.5", "1e300"])
def test_a_gauge_that_is_no_number_is_unknown(odd: str) -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        f'vllm:kv_cache_usage_perc{{engine="1"}} {odd}\n'
    )
    assert read_metrics(text, "vllm") == {"running": 3}


NESTED = "[" * 100_000


@pytest.mark.parametrize(
    "body", ['{"data": 5}', '{"data": [5, {"id": 7}]}', "[]", "null", "{", NESTED]
)
def test_a_list_of_models_that_is_none_is_one_line(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServefitError, match="has no list of models"):
        _discovered({"/v1/models": body}, monkeypatch)


@pytest.mark.parametrize(
    "slots", ['"four"', "-1", "0", "true", "4.5", "[4]", "null", "1" + "0" * 400]
)
def test_a_setting_that_makes_no_sense_is_unknown(
    slots: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = {
        "/v1/models": '{"data": [{"id": "m"}]}',
        "/props": f'{{"total_slots": {slots}, "build_info": {{"b": 1}}}}',
        "/version": NESTED,
    }
    server = _discovered(pages, monkeypatch)
    assert (server.engine, server.seats) == ("llama.cpp", None)
    assert server.settings == {"engine": "llama.cpp"}


def _discovered(pages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Server:
    async def query(self: Client, path: str, *_: object) -> Reply:
        return Reply(200 if path in pages else 404, pages.get(path, ""))

    monkeypatch.setattr(Client, "query", query)
    return run(discover(Client("http://127.0.0.1:9")))


def test_an_answer_without_end_is_not_read(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servefit.profiling.client.MAX_REPLY_BYTES", 20)

    async def work() -> tuple[Reply | None, str]:
        async with Client(stub.url) as client:
            return await client.query("/v1/models"), client.failure

    assert run(work()) == (None, "protocol: an answer of more than 20 bytes")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"gzip": True}, "content encoding gzip.*switch it off"),
        ({"page_faults": {"/v1/models": [301]}}, "HTTP 301 redirects to https://elsewhere.example"),
    ],
)
def test_compressed_and_redirected_answers_are_named(
    stub: Stub, script: dict[str, Any], words: str
) -> None:
    stub.script(**script)

    async def work() -> None:
        async with Client(stub.url) as client:
            await discover(client)

    with pytest.raises(ServefitError, match=words):
        run(work())
