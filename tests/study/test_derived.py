from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from servefit.errors import ServefitError
from servefit.study.derived import family_of, length_class, short_name, with_derived

from .conftest import MODELS, run, table


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return with_derived(table(rows)).frame[name].to_list()


def test_lengths_within_five_per_cent_are_one() -> None:
    lengths = np.array([242.0, 250.0, 130.0, 292.03, 292.46])
    assert length_class(lengths).tolist() == [246.0, 246.0, 130.0, 292.0, 292.0]


def test_caps_are_ranked_within_their_curve() -> None:
    rows = [
        run(MODELS[0], 64, ol, cap) for ol, caps in ((32, (8, 2, 4)), (64, (1, 16))) for cap in caps
    ]
    assert column(rows, "cap_rank") == [3, 1, 2, 1, 2]
    assert column(rows, "curve") == ["opt-125m 64+32"] * 3 + ["opt-125m 64+64"] * 2


def test_the_largest_model_is_held_out_only_where_others_ran() -> None:
    rows = [run(m, 64, 32, 1) for m in MODELS] + [run(MODELS[2], 64, 32, 1, campaign="alone")]
    assert column(rows, "model_rank") == [3, 2, 1, 1]
    assert column(rows, "largest_model") == [False, False, True, False]
    assert column(rows, "smallest_model") == [True, False, False, False]


def test_output_lengths_are_ranked_for_each_model_and_input() -> None:
    rows = [run(MODELS[0], il, ol, 1) for il, ol in ((64, 32), (64, 64), (64, 128), (512, 32))]
    assert column(rows, "output_rank") == [3, 2, 1, 1]
    assert column(rows, "output_lengths") == [3, 3, 3, 1]
    assert column(rows, "inner_output") == [False, True, False, True]
    assert column(rows, "input_rank") == [2, 1, 1, 1]
    assert column(rows, "input_lengths") == [2, 1, 1, 2]


def test_a_run_that_filled_the_kv_cache_is_marked_and_an_unknown_one_is_not() -> None:
    rows = [run(MODELS[0], 64, 32, 1, preemptions=n) for n in (0, 3, None)]
    assert column(rows, "preempted") == [False, True, False]


def test_families_go_by_name_and_the_best_measured_comes_first() -> None:
    assert [
        family_of(m)
        for m in ("facebook/opt-1.3b", "meta-llama/Llama-2-7b-hf", "a/b/opt-4l-256d/config.json")
    ] == ["opt", "llama", "opt"]
    rows = [run(m, 64, 32, 1) for m in (*MODELS, "mistralai/Mistral-7B-v0.1")]
    assert column(rows, "family_rank") == [1, 1, 1, 2]


def test_names_in_figures_are_short() -> None:
    assert short_name("meta-llama/Llama-2-7b-hf") == "Llama-2-7b"
    assert short_name("/x/opt-4l-256d/config.json") == "opt-4l-256d"


def test_rows_without_a_batch_leave_and_none_at_all_is_refused() -> None:
    bare = {"max_num_seqs": None, "mean_batch": None}
    rows = [run(MODELS[0], 64, 32, 1), run(MODELS[0], 64, 32, 2, **bare)]
    assert column(rows, "cap") == [1.0]
    with pytest.raises(ServefitError, match="nothing can be studied"):
        with_derived(table([run(MODELS[0], 64, 32, 2, **bare)]))
