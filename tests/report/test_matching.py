from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from servefit import api
from servefit.advise import Terms
from servefit.explore.answer import document
from servefit.explore.fields import read
from servefit.explore.session import Session
from servefit.laws import Observations
from servefit.observations import observe
from servefit.points import Serving
from servefit.report.matching import matching
from servefit.report.series import measured_rows
from servefit.report.source import Source
from servefit.report.view import Question, look
from servefit.workload import Workload
from tests.cli.conftest import Run
from tests.report.test_report import Page

FIT = api.as_calibration("prior:step")
MIXED = Workload.from_moments(250, 390, cv_output=0.9)


def plain_runs(**columns: object) -> Observations:
    """Three runs of equal requests, chunked under a budget of 512 tokens."""
    rows = {
        "model": "facebook/opt-1.3b",
        "gpu": "H100",
        "input_tokens": 250.0,
        "output_tokens": 390.0,
        "mean_batch": [1.0, 8.0, 32.0],
        "e2e_mean_s": [2.0, 2.5, 3.0],
        "chunked_prefill": True,
        "max_num_batched_tokens": 512,
    }
    return observe(pl.DataFrame(rows | columns)).observations


def asked(
    *,
    model: str = "facebook/opt-1.3b",
    gpu: str = "H100",
    lengths: tuple[float, float] = (250, 390),
    tensor_parallel_size: int = 1,
    dtype: str | None = None,
    workload: Workload | None = None,
    serving: Serving | None = None,
    budget: int | None = None,
) -> Question:
    points = api.points_of(
        FIT,
        model=model,
        gpu=gpu,
        input_tokens=None if workload else lengths[0],
        output_tokens=None if workload else lengths[1],
        workload=workload,
        batch=1,
        tensor_parallel_size=tensor_parallel_size,
        serving=serving,
        dtype=dtype,
    )
    return Question(points, terms=Terms(max_num_batched_tokens=budget))


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        (asked(model="facebook/opt-2.7b"), "of another model"),
        (asked(dtype="fp8"), "in other number formats"),
        (asked(gpu="A100-80GB"), "on another GPU"),
        (asked(tensor_parallel_size=2), "of another tensor parallelism"),
        (asked(lengths=(250, 400)), "of other lengths"),
        (asked(workload=MIXED), "of lengths that vary otherwise"),
        (asked(serving=Serving.of(pipeline_parallel_size=4)), "of other pipeline stages"),
        (asked(serving=Serving.of(prefix_hit_rate=0.9)), "of another prefix hit rate"),
        (asked(serving=Serving.of(draft_tokens=4)), "of other draft tokens"),
        (asked(serving=Serving.of(static=True)), "of another kind of batch (static or not)"),
        (asked(serving=Serving.of(chunked_prefill=False)), "with prompts scheduled otherwise"),
        (asked(budget=64), "of another or unknown token budget"),
    ],
)
def test_runs_of_another_question_are_left_out_and_it_is_said(
    question: Question, reason: str
) -> None:
    view, observations = look(FIT, question), plain_runs()
    assert measured_rows(view, observations) == []
    sentence = matching(view, observations).sentence
    assert sentence == f"None of 3 measured runs drawn; left out: 3 {reason}."


@pytest.mark.parametrize(
    "question",
    [
        asked(),
        asked(lengths=(251, 389)),
        asked(budget=512),
        asked(serving=Serving.of(chunked_prefill=True)),
        asked(workload=Workload.from_moments(250, 390)),
    ],
)
def test_runs_of_the_very_question_are_drawn(question: Question) -> None:
    view, observations = look(FIT, question), plain_runs()
    assert [row["batch"] for row in measured_rows(view, observations)] == [1, 8, 32]
    assert matching(view, observations).sentence == "All 3 measured runs drawn."


def test_runs_read_as_of_mixed_lengths_are_drawn_on_curves_of_these() -> None:
    mixed = replace(plain_runs(), points=plain_runs().points.with_workload(MIXED))
    assert matching(look(FIT, asked(workload=MIXED)), mixed).drawn.all()
    assert not matching(look(FIT, asked()), mixed).drawn.any()


def test_some_are_drawn_and_some_are_not() -> None:
    some = plain_runs(output_tokens=[390.0, 390.0, 64.0])
    found = matching(look(FIT, asked()), some)
    np.testing.assert_array_equal(found.drawn, [True, True, False])
    assert found.sentence == "2 of 3 measured runs drawn; left out: 1 of other lengths."


def test_the_page_says_that_none_is_drawn() -> None:
    session = Session(FIT, name="prior:step", source=Source(plain_runs()))
    values = {"model": "facebook/opt-1.3b", "gpu": "H100"}
    values |= {"input_tokens": "250", "output_tokens": "390", "slo": ""}
    said = "None of 3 measured runs drawn; left out: 3 of another prefix hit rate"
    plain = document(session, read(session.controls(), values.items()))
    hits = document(
        session, read(session.controls(), (values | {"prefix_hit_rate": "0.9"}).items())
    )
    assert len(plain["series"]["measured"]) == 3
    assert said not in plain["warnings"]
    assert hits["series"]["measured"] == []
    assert said in hits["warnings"]


def test_a_model_by_path_is_served_in_the_formats_that_it_was_measured_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servefit.report.page.data_uri", lambda chart: "data:,")
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    shape = {
        "model_type": "opt", "hidden_size": 64, "ffn_dim": 128, "vocab_size": 1000,
        "num_hidden_layers": 2, "num_attention_heads": 4, "torch_dtype": "float32",
        "max_position_embeddings": 2048,
    }  # fmt: skip
    config.write_text(json.dumps(shape))
    lines = ["model,gpu,dtype,input_tokens,output_tokens,mean_batch,e2e_mean_s"]
    for batch in (1, 2, 4, 8, 16):
        lines.append(f"{config},H100,float32,64,32,{batch},{0.2 + 0.02 * batch}")
    runs, fit, page = tmp_path / "runs.csv", tmp_path / "fit.json", tmp_path / "r.html"
    runs.write_text("\n".join(lines) + "\n")
    assert run("fit", runs, "-o", fit).status == 0
    question = (fit, "--model", config, "--runs", runs, "-o", page)
    outcome = run("report", *question)
    assert outcome.status == 0, outcome.err
    words = " ".join(Page(page.read_text()).words)
    assert "All 5 measured runs drawn." in words
    assert "float32" in words
    assert run("report", *question, "--dtype", "bfloat16").status == 0
    words = " ".join(Page(page.read_text()).words)
    assert "None of 5 measured runs drawn; left out: 5 in other number formats." in words
