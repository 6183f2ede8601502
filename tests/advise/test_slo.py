from __future__ import annotations

import math

import pytest

from servefit.advise import RelativeSlo, Slo, parse_slos
from servefit.advise.slo import Reference
from servefit.errors import ServefitError


def test_limits_have_units() -> None:
    assert parse_slos(["tpot=40ms"]) == [Slo("tpot", 0.04)]
    assert parse_slos(["TTFT = 200 ms", "e2e=2s"]) == [Slo("ttft", 0.2), Slo("e2e", 2.0)]
    assert parse_slos(["tpot=40ms,e2e=1.5min"]) == [Slo("tpot", 0.04), Slo("e2e", 90.0)]


def test_a_multiple_names_its_reference_point() -> None:
    (short,) = parse_slos(["e2e=1.5x@32"])
    assert isinstance(short, RelativeSlo)
    assert (short.multiple, short.reference) == (1.5, Reference(32))
    both = parse_slos(["e2e=2x@batch=32,input_tokens=2,output_tokens=128,tpot=40ms"])
    assert [s.latency for s in both] == ["e2e", "tpot"]
    assert isinstance(both[0], RelativeSlo)
    assert both[0].reference == Reference(32, 2, 128)


def test_a_relative_slo_becomes_absolute_and_says_how() -> None:
    (relative,) = parse_slos(["e2e=1.5x@32"])
    assert isinstance(relative, RelativeSlo)
    absolute = relative.resolve(lambda latency, reference: 2.0)
    assert absolute.limit_s == 3.0
    assert absolute.origin == "1.5 x 2.00 s at batch 32"
    with pytest.raises(ServefitError, match="reference point is unknown"):
        relative.resolve(lambda latency, reference: math.nan)


@pytest.mark.parametrize(
    "text",
    [
        "p99_ttft=200ms",
        "tpot_p99=40ms",
        "ttft.p95=1s",
        "p50-e2e=2s",
        "median_ttft=1s",
        "tpot_max=1s",
        "99th_percentile_e2e=2s",
        "tpot=p99",
        "p99.9_tpot=1s",
        "P99=40ms",
    ],
)
def test_percentiles_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(ServefitError, match="laws predict means"):
        parse_slos([text])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("tpot=40", "unit"),
        ("tpot=-40ms", "positive"),
        ("tpot=0s", "positive"),
        ("tpot=1e400s", "finite"),
        ("tpot=nan", "no duration"),
        ("tpot=", "give one of"),
        ("tpot", "give one of"),
        ("", "give one of"),
        ("itl=40ms", "give one of e2e, ttft, tpot"),
        ("e2e=1.5x", "reference batch"),
        ("e2e=1.5@32", "1.5x@32"),
        ("e2e=-1x@32", "positive"),
        ("e2e=1e400x@32", "finite"),
        ("e2e=twox@32", "not a number"),
        ("e2e=2x@", "not a number"),
        ("e2e=2x@batch=32,batch=64", "reference point"),
        ("e2e=2x@input_tokens=2", "names no batch"),
        ("e2e=2x@0", "positive"),
    ],
)
def test_nonsense_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ServefitError, match=complaint) as error:
        parse_slos([text])
    assert "\n" not in str(error.value)
