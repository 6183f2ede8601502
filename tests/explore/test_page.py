from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servefit import api
from servefit.advise import Advice, Infeasible
from servefit.advise.candidates import MAX_CANDIDATES
from servefit.advise.document import advice_as_json
from servefit.calibration import Range
from servefit.cli.explore import _workloads
from servefit.explore.answer import document, view_of
from servefit.explore.caps import SOME_CAPS
from servefit.explore.fields import FieldError, read
from servefit.explore.session import Session
from servefit.hardware import get_hardware
from servefit.models import get_model
from servefit.report.view import look
from servefit.workload import Workload
from tests.cli.conftest import Run
from tests.explore.conftest import ASKED, view


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
        {"other_gib": "0", "gpu_memory_utilization": "0.8123456789012"},
        {"other_gib": "2.123456789012345", "slo_ms": "9.123456789012345", "rate": "3.123456789012"},
        {"input_tokens": "250.12345678901234", "epsilon": "0.012345678901234", "cv_input": "1"},
        {"input_tokens": "250.12345678901234", "output_tokens": "300.00000000001"},
        {"slo_kind": "times", "slo_times": "1.712345678901234", "confidence": "0.912345678901"},
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
        ("acceptance_rate", "0.5", "speculative decoding"),
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


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        (
            {"model": "Qwen/Qwen2.5-7B", "tensor_parallel_size": "8"},
            "tensor_parallel_size",
            "does not share the 28 query heads and 4 KV heads",
        ),
        ({"input_tokens": "2000"}, "input_tokens", "has learned positions for 2,048"),
        ({"output_tokens": "2000"}, "output_tokens", "2,250 tokens"),
        ({"workload": "long.csv"}, "workload", "has learned positions for 2,048"),
        (
            {"chunked_prefill": "no", "max_num_batched_tokens": "249"},
            "max_num_batched_tokens",
            "a prompt must fit one step, and has 250 tokens",
        ),
    ],
)
def test_what_no_engine_runs_is_said_beside_its_control(
    session: Session, changes: dict[str, str], name: str, said: str
) -> None:
    traces = {"long.csv": Workload.from_lengths([1900, 2000], [100, 300], "long.csv")}
    asked = replace(session, workloads=traces)
    with pytest.raises(FieldError) as refused:
        document(asked, read(asked.controls(), (ASKED | changes).items()))
    assert set(refused.value.errors) == {name}
    assert said in refused.value.errors[name]


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
    relative = {"slo_kind": "times", "slo_batch": "4"}
    for kind in ({}, relative):
        error = client.get("/api/view", params=asked | kind).json()["errors"]["slo"]
        assert "TPOT does not exist with one output token" in error
        assert error.endswith("bound E2E or TTFT instead, or ask for 2 or more of them")
    for remedy in (
        {"slo": "e2e", "slo_ms": "9000"},
        {"slo": "ttft", "slo_ms": "9000"},
        {"output_tokens": "2"},
        {"output_tokens": "2", **relative},
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


def test_a_gpu_that_the_fit_does_not_reach_is_named_beside_its_control(
    session: Session, tmp_path: Path
) -> None:
    table = ["model,input_tokens,output_tokens,mean_batch,max_num_seqs,e2e_mean_s,preemptions"]
    for batch in (1, 4, 16, 64):
        for lengths in ((100, 100), (500, 200)):
            points = api.points_of(
                session.calibration, model="facebook/opt-1.3b", gpu="H100",
                input_tokens=lengths[0], output_tokens=lengths[1], batch=batch,
            )  # fmt: skip
            seconds = float(api.predict(session.calibration, points).e2e_s)
            table.append(f"facebook/opt-1.3b,{lengths[0]},{lengths[1]},{batch},{batch},{seconds},0")
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(table))
    fit = api.fit(api.read_runs(path), law="slim", gpu="unknown")
    given = Session(fit, gpus={"H100": get_hardware("H100")})
    fields = given.controls()
    assert fields[1].default == "H100"
    assert given.decomposition()[1]
    with pytest.raises(FieldError) as refused:
        document(given, read(fields, []))
    assert list(refused.value.errors) == ["gpu"]
    assert "unknown" in document(given, read(fields, [("gpu", "unknown")]))["command"]


def test_hardware_of_the_calibration_comes_before_a_given_one_as_for_advise(
    session: Session,
) -> None:
    own = replace(get_hardware("H100"), memory_bytes=40e9)
    seen = replace(session.calibration, hardware=(own,))
    given = Session(seen, gpus={"H100": get_hardware("H100")})
    assert given.gpu("H100") is own
    assert ("H100", "H100 (measured)") in given.controls()[1].choices


def test_lengths_reach_as_far_as_what_was_measured(session: Session) -> None:
    far = {"input_tokens": Range(199_000.0, 200_000.5), "output_tokens": Range(40_000.0, 50_000.0)}
    given = replace(session, calibration=replace(session.calibration, ranges=far))
    fields = {field.name: field for field in given.controls()}
    assert fields["input_tokens"].high == 200_001
    assert fields["output_tokens"].high == 50_000
    for name in far:
        field = fields[name]
        assert field.parse(str(field.default)) == field.default
    usual = {field.name: field for field in session.controls()}
    assert (usual["input_tokens"].high, usual["output_tokens"].high) == (131_072, 32_768)


def test_a_trace_of_another_folder_is_named_by_its_path_in_the_command(
    session: Session, run: Run, tmp_path: Path
) -> None:
    paths = [tmp_path / folder / "trace.csv" for folder in ("sub", "other")]
    for path, length in zip(paths, (100, 900), strict=True):
        path.parent.mkdir()
        path.write_text(f"input_tokens,output_tokens\n{length},50\n300,200\n")
    texts = [str(path) for path in paths]
    one = replace(session, workloads=_workloads(tuple(texts[:1])))
    choices = next(field.choices for field in one.controls() if field.name == "workload")
    assert choices[1] == (texts[0], "trace trace.csv")
    shown = document(one, read(one.controls(), (ASKED | {"workload": texts[0]}).items()))
    outcome = run(*shlex.split(shown["command"])[1:], "--json")
    assert shown["advice"] == json.loads(outcome.out)
    two = replace(session, workloads=_workloads(tuple(texts)))
    choices = next(field.choices for field in two.controls() if field.name == "workload")
    assert choices[1:] == tuple((text, f"trace {text}") for text in texts)


def test_no_choice_reads_a_file_of_the_same_name(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "facebook/opt-1.3b").mkdir(parents=True)
    (tmp_path / "facebook/opt-1.3b/config.json").write_text("no JSON")
    monkeypatch.chdir(tmp_path)
    assert session.model("facebook/opt-1.3b").num_layers == 24


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
    assert caps[-1] == MAX_CANDIDATES
    assert caps.size <= 10 * SOME_CAPS
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


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.tuples(st.integers(1, 4), st.integers(2, 9)),
    slo=st.sampled_from(["e2e", "tpot", "ttft"]),
    share=st.floats(0.6, 3),
    rule=st.sampled_from(["tolerance", "efficiency"]),
    epsilon=st.sampled_from(["0", "0.01", "0.05", "0.3", "0.9"]),
    confidence=st.sampled_from(["0.5", "0.9"]),
)
def test_however_few_caps_are_tried_the_answer_is_that_of_all(
    session: Session,
    lengths: tuple[int, int],
    slo: str,
    share: float,
    rule: str,
    epsilon: str,
    confidence: str,
) -> None:
    asked = {
        **ASKED,
        "input_tokens": str(lengths[0]),
        "output_tokens": str(lengths[1]),
        "kv_capacity_tokens": "30000",
        "slo": slo,
        "slo_kind": "times",
        "slo_times": f"{share:.3f}",
        "slo_batch": "64",
        "rule": rule,
        "epsilon": epsilon,
        "confidence": confidence,
    }
    few = view_of(session, read(session.controls(), asked.items()))
    terms = replace(few.question.terms, candidates=None)
    every = look(session.calibration, replace(few.question, terms=terms))
    assert every.problem.curve.cap.size > few.problem.curve.cap.size
    if isinstance(every.answer, Infeasible):
        assert few.answer == every.answer
        return
    assert isinstance(few.answer, Advice)
    assert advice_as_json(few.answer, ()) == advice_as_json(every.answer, ())
