"""Row selection."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.runs.select import parse_selections
from servefit.runs.table import RunTable, table_from_rows
from tests.runs.rows import SERVED

FRAME = pl.DataFrame(
    {
        "model": ["a", "b", "b,c", None, "null", "1..2"],
        "output_tokens": [100.0, 200.0, 300.0, None, 390.0, 400.0],
        "preemptions": pl.Series([0, 0, 3, None, 0, 1], dtype=pl.Int64),
        "chunked_prefill": [True, False, None, True, True, False],
        "ttft_mean_s": [0.01, 0.02, 0.03, None, 0.05, 0.06],
        "my_note": ["x", None, "x", "y", "y", "y"],
        "row": pl.Series([0, 1, 2, 4, 5, 7], dtype=pl.Int64),
        "file": ["f"] * 6,
    }
)


@pytest.mark.parametrize(
    ("selections", "rows"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        (["model=a"], [0]),
        (["model=a,b"], [0, 1]),
        (["model = a , b"], [0, 1]),
        (['model="b,c"'], [2]),
        (['model="b,c",a'], [0, 2]),
        (["model=null"], [3]),
        (['model="null"'], [4]),
        (['model="1..2"'], [5]),
        (["model!=a"], [1, 2, 4, 5]),
        (["model!=null"], [0, 1, 2, 4, 5]),
        (["model!=a,null"], [1, 2, 4, 5]),
        (["model=a,null"], [0, 3]),
        (["output_tokens=..300"], [0, 1, 2]),
        (["output_tokens=300.."], [2, 4, 5]),
        (["output_tokens=200..390"], [1, 2, 4]),
        (["output_tokens=100,300..395"], [0, 2, 4]),
        (["output_tokens!=200..390"], [0, 5]),
        (["output_tokens=390"], [4]),
        (["output_tokens=3.9e2"], [4]),
        (["preemptions=0"], [0, 1, 4]),
        (["preemptions=0.0"], [0, 1, 4]),
        (["preemptions!=0"], [2, 5]),
        (["chunked_prefill=true"], [0, 3, 4]),
        (["chunked_prefill=False"], [1, 5]),
        (["chunked_prefill!=true"], [1, 5]),
        (["chunked_prefill=null"], [2]),
        (["my_note=x"], [0, 2]),
        (["row%2=0"], [0, 2, 3]),
        (["row % 2 = 1"], [1, 4, 5]),
        (["row%2!=0"], [1, 4, 5]),
        (["row%4=0,1"], [0, 1, 3, 4]),
        (["row=2..5"], [2, 3, 4]),
        (["osl=390"], [4]),
        (["ttft_ms=20..50"], [1, 2, 4]),
        (["Mean TTFT (ms)=50"], [4]),
        (["preemptions=0", "output_tokens=150.."], [1, 4]),
        (["model=a", "model=b"], []),
    ],
)
def test_selections(selections, rows):
    mask = parse_selections(selections).mask(FRAME)
    assert mask.dtype == bool
    assert np.flatnonzero(mask).tolist() == rows


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ("model", "key=v1,v2"),
        ("", "key=v1,v2"),
        ("=a", "key=v1,v2"),
        ("model=", "key=null"),
        ("model=a,", "key=null"),
        ("model=a,,b", "key=null"),
        ('model="a', "quote"),
        ('model="a"b', "quote"),
        ("output_tokens=..", "lo..hi"),
        ("output_tokens=300..200", "empty"),
        ("output_tokens=abc", "numbers"),
        ("output_tokens=nan", "numbers"),
        ("output_tokens=1..x", "numbers"),
        ("model=a..b", "double quotes"),
        ("chunked_prefill=1", "true or false"),
        ("modle=a", "did you mean model"),
        ("zzz=1", "there are model, output_tokens"),
        ("row%0=0", "row%2=0"),
        ("preemptions%2=0", "row%2=0"),
        ("__import__('os').system('true')", "key=v1,v2"),
    ],
)
def test_a_bad_selection_is_one_line_that_says_what_to_write(selection, words):
    with pytest.raises(ServefitError) as caught:
        parse_selections([selection]).mask(FRAME)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message


def test_a_selection_that_matches_nothing_says_what_each_part_matches():
    rows = [{**SERVED, "mean_batch": b} for b in (9.9, 10.0)]
    table = table_from_rows(rows, "runs.csv")
    selection = parse_selections(["mean_batch=10", "max_num_seqs=13"])
    with pytest.raises(ServefitError, match=r"--train: of 2 rows.*matches 1.*matches 0"):
        selection.apply(table, "--train")
    assert parse_selections(["mean_batch=10"]).apply(table).frame["row"].to_list() == [1]


def test_an_empty_selection_is_the_table_itself():
    table = RunTable("runs", FRAME, ("f",))
    assert parse_selections([]).apply(table) is table


@given(st.text(max_size=30))
def test_any_text_is_a_selection_or_one_clear_line(text):
    try:
        mask = parse_selections([text]).mask(FRAME)
    except ServefitError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert mask.shape == (FRAME.height,)


@given(st.lists(st.text(max_size=8), min_size=1, max_size=4))
def test_quoted_values_match_exactly_themselves(texts):
    frame = pl.DataFrame({"model": texts})
    for text in texts:
        quoted = text.replace('"', '""')
        mask = parse_selections([f'model="{quoted}"']).mask(frame)
        assert mask.tolist() == [other == text for other in texts]


@given(st.lists(st.none() | st.floats(-10, 10), min_size=1), st.floats(-10, 10), st.floats(-10, 10))
def test_a_range_and_its_negation_split_the_known_rows(values, one, other):
    low, high = sorted((one, other))
    frame = pl.DataFrame({"power_w": pl.Series(values, dtype=pl.Float64)})
    inside = parse_selections([f"power_w={low!r}..{high!r}"]).mask(frame)
    outside = parse_selections([f"power_w!={low!r}..{high!r}"]).mask(frame)
    null = parse_selections(["power_w=null"]).mask(frame)
    assert (inside.astype(int) + outside + null == 1).all()
