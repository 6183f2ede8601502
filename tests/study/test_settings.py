from __future__ import annotations

import numpy as np
import pytest

from servefit.errors import ServefitError
from servefit.study.bench import Bench
from servefit.study.settings import load_study, parse_study
from servefit.study.splits import describe, resolve

from .conftest import CAPS, MODELS, OUTPUTS

MINIMAL = """
title = "t"
[[setting]]
name = "a"
train = ["cap=1"]
test = ["cap=2"]
"""


def test_the_paper_study_ships_with_servefit() -> None:
    study, text = load_study("paper")
    names = [s.name for s in study.setting if not s.variant]
    assert names == ["Same curve", "Input length", "Model", "Output length", "Combined"]
    assert study.baselines == ("llmvisor", "imai")
    assert text.startswith("#")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title", "titel"), "'titel' is not known"),
        (('title = "t"', ""), "title is missing"),
        (('["cap=1"]', '"cap=1"'), "is a list"),
        (('["cap=1"]', '["cap"]'), "is no selection"),
        (('train = ["cap=1"]', ""), "needs train and test, or union"),
        (('"t"', '"t"\nlaws = ["slam"]'), "unknown law 'slam'"),
        (('"t"', '"t"\nfigures = {estimators = "b"}'), "no setting is called 'b'"),
        (('name = "a"', 'name = "a"\nunion = ["b"]'), "unites 'b'"),
        (('title = "t"', "title = "), "is no TOML"),
        (('"t"', '"t"\nbaselines = ["imai"]'), r"baseline 'imai' is not among laws = \['slim'\]"),
        ((MINIMAL[MINIMAL.index("[[") :], ""), "has no setting"),
    ],
)
def test_a_wrong_study_is_refused_with_its_reason(change: tuple[str, str], message: str) -> None:
    with pytest.raises(ServefitError, match=message):
        parse_study(MINIMAL.replace(*change, 1), "study.toml")


@pytest.mark.parametrize(
    ("section", "entry", "message"),
    [
        ("economy", "seed = -1", r"seed = -1: is at least 0"),
        ("economy", "repeats = 0", r"repeats = 0: is at least 1"),
        ("economy", "counts = [2, 0]", r"counts = 0: is at least 1"),
        ("economy", "laws = []", r"laws = \[\]: name at least one"),
        ("bca", "reference_batch = -3", r"reference_batch = -3: is a finite number above 0"),
        ("bca", "reference_batch = inf", r"reference_batch = inf: is a finite number above 0"),
        ("bca", "epsilon = 7", r"epsilon = 7: is a share, from 0 to below 1"),
        ("bca", "epsilon = nan", r"epsilon = nan: is a share, from 0 to below 1"),
        ("bca", "epsilons = [0.1, -0.1]", r"epsilons = -0\.1: is a share"),
        ("bca", "epsilons = []", r"epsilons = \[\]: name at least one"),
        ("bca", "slo_multiple = 0", r"slo_multiple = 0: is a finite number above 0"),
        ("bca", "slo_multiple = nan", r"slo_multiple = nan: is a finite number above 0"),
        ("bca", "slo_multiples = [2, -1]", r"slo_multiples = -1: is a finite number above 0"),
        ("bca", "laws = []", r"laws = \[\]: name at least one"),
    ],
)
def test_a_number_that_means_nothing_is_refused(section: str, entry: str, message: str) -> None:
    with pytest.raises(ServefitError, match=rf"^study\.toml: \[{section}\] {message}"):
        parse_study(f"{MINIMAL}\n[{section}]\n{entry}\n", "study.toml")


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ServefitError, match=r"nowhere\.toml: cannot be read"):
        load_study("nowhere.toml")


def test_settings_of_the_paper_choose_what_they_say(bench: Bench) -> None:
    study, _ = load_study("paper")
    splits = resolve(study.setting, bench.table)
    frame = bench.table.frame

    same = splits["Same curve"]
    assert sorted(set(frame["cap"].to_numpy()[same.train])) == [1.0, 2.0, 4.0]
    assert (same.train ^ same.test).all()

    model = splits["Model"]
    assert set(np.array(frame["model"].to_list())[model.test]) == {MODELS[2]}
    assert set(frame["output_tokens"].to_numpy()[model.train | model.test]) == {64.0}
    assert model.test.sum() == len(CAPS)

    output = splits["Output length"]
    assert set(frame["output_tokens"].to_numpy()[output.test]) == {float(OUTPUTS[-1])}
    assert MODELS[2] not in np.array(frame["model"].to_list())[output.train | output.test]

    union = splits["Combined"]
    assert (union.train == (model.train | output.train)).all()
    assert (union.test == (model.test | output.test)).all()
    assert not (union.train & union.test).any()


def test_a_setting_without_rows_says_what_matches_nothing(bench: Bench) -> None:
    study, _ = load_study("paper")
    reason = resolve(study.setting, bench.table)["Input length"].reason
    assert reason is not None
    assert "'input_lengths=2..' matches 0" in reason


def test_a_union_with_a_setting_that_does_not_exist_does_not_exist(bench: Bench) -> None:
    text = MINIMAL.replace("cap=1", "cap=7") + '[[setting]]\nname = "b"\nunion = ["a"]\n'
    splits = resolve(parse_study(text, "t").setting, bench.table)
    assert splits["b"].reason == "a, which it unites, does not exist on these runs"


def test_rows_are_described_in_one_line(bench: Bench) -> None:
    chosen = bench.table.frame["model"] == MODELS[0]
    assert describe(bench.table, chosen.to_numpy()) == (
        "facebook/opt-125m; input 64; output 32, 64, 128; cap 1, 2, ..., 128"
    )
