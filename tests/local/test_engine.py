"""The embedded engine decodes static batches of exact lengths."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from servefit.errors import ServefitError
from servefit.local.decoder import llama_config, require_ctranslate2
from servefit.local.engine import BatchTiming, LocalEngine, local_engine

pytestmark = pytest.mark.real_engine


class Spy:
    """Stands before the real generator: notes the order of tokens, may cut answers short."""

    def __init__(self, generator: Any, *, cut: int = 0) -> None:
        self.generator = generator
        self.cut = cut
        self.order: list[tuple[int, int]] = []

    def generate_batch(self, prompts: list[list[str]], callback: Any, **options: Any) -> list[Any]:
        self.prompts = prompts
        order = self.order  # the engine's thread must not come to own the generator through us

        def note(step: Any) -> bool:
            order.append((step.step, step.batch_id))
            return bool(callback(step))

        answers = self.generator.generate_batch(prompts, callback=note, **options)
        return [
            SimpleNamespace(
                sequences_ids=[a.sequences_ids[0][: len(a.sequences_ids[0]) - self.cut]]
            )
            for a in answers
        ]


def spy_on(engine: LocalEngine, **options: Any) -> Spy:
    spy = Spy(engine._generator, **options)
    engine._generator = spy
    return spy


def test_the_whole_batch_takes_every_step_together(engine: LocalEngine) -> None:
    spy = spy_on(engine)
    engine.run(batch=5, input_tokens=7, output_tokens=9)
    steps = [list(group) for _, group in groupby(spy.order, key=lambda entry: entry[0])]
    assert len(steps) == 9
    assert all({request for _, request in step} == set(range(5)) for step in steps)
    assert [len(prompt) for prompt in spy.prompts] == [7] * 5


def test_prompts_are_random_but_repeatable(engine: LocalEngine) -> None:
    spy = spy_on(engine)
    seen = []
    for seed in (0, 0, 1):
        engine.run(batch=2, input_tokens=16, output_tokens=1, seed=seed)
        seen.append(spy.prompts)
    assert seen[0] == seen[1] != seen[2]
    assert seen[0][0] != seen[0][1]


def test_the_first_token_comes_before_the_last(engine: LocalEngine) -> None:
    timing = engine.run(batch=4, input_tokens=16, output_tokens=32)
    assert 0 < timing.ttft_s < timing.e2e_s
    single = engine.run(batch=4, input_tokens=16, output_tokens=1)
    assert single.ttft_s <= single.e2e_s


def test_an_answer_of_another_length_is_no_timing(engine: LocalEngine) -> None:
    spy_on(engine, cut=1)
    with pytest.raises(ServefitError, match=r"\[3\] tokens where 4 were asked for"):
        engine.run(batch=2, input_tokens=4, output_tokens=4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4, 4), "batch = 0"),
        ((1, 0, 4), "input_tokens = 0"),
        ((1, 4, 0), "output_tokens = 0"),
        ((1, 2000, 49), "input_tokens \\+ output_tokens = 2049"),
    ],
)
def test_impossible_sizes_are_refused(
    engine: LocalEngine, sizes: tuple[int, int, int], message: str
) -> None:
    batch, input_tokens, output_tokens = sizes
    with pytest.raises(ServefitError, match=message):
        engine.run(batch=batch, input_tokens=input_tokens, output_tokens=output_tokens)


def test_a_grouped_query_decoder_runs_too(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(llama_config(2, 128, num_key_value_heads=1, vocab_size=256)))
    with local_engine(config, threads=1) as engine:
        assert engine.run(batch=3, input_tokens=5, output_tokens=4).e2e_s > 0


def test_the_interpreter_ends_cleanly_after_a_run(tiny_config: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from servefit.local.engine import local_engine\n"
        "with local_engine(Path(sys.argv[1]), threads=1) as engine:\n"
        "    engine.run(batch=1, input_tokens=2, output_tokens=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_config)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_without_ctranslate2_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ServefitError, match=r"pip install 'servefit\[local\]'"):
        require_ctranslate2()


def test_waits_can_be_taken_out() -> None:
    timing = BatchTiming(e2e_s=2.0, ttft_s=0.5, waited_s=0.8, ttft_waited_s=0.1)
    assert timing.waited_share == pytest.approx(0.4)
    assert not timing.undisturbed
    assert timing.without_waits() == BatchTiming(pytest.approx(1.2), pytest.approx(0.4))
    assert timing.without_waits().undisturbed
