"""Durations and sizes, read and written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.units import (
    exact,
    format_bytes,
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("40ms", 0.04),
        ("40 ms", 0.04),
        ("2s", 2.0),
        (".5s", 0.5),
        ("1.5min", 90.0),
        ("250us", 250e-6),
        ("250µs", 250e-6),
        ("1e3ms", 1.0),
        ("1h", 3600.0),
        ("40MS", 0.04),
    ],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("80GB", 80e9),
        ("512 MiB", 512 * 2**20),
        ("1.5kB", 1500),
        ("7B", 7),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text, size):
    assert parse_bytes(text) == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["", "40", "ms", "40 parsecs", "4 0ms", "-1s", "0s", "nan s", "1e999s"]
)
def test_what_is_no_duration_is_one_clear_line(text):
    with pytest.raises(ServefitError) as caught:
        parse_duration_s(text)
    assert repr(text) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["24", "24G", "24Gi", "24 GBit", "-1GB", "GB"])
def test_what_is_no_size_names_both_kinds_of_unit(text):
    with pytest.raises(ServefitError, match=r"24GiB|positive"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "40.0 ms"),
        (0.0404, "40.4 ms"),
        (1.0, "1.00 s"),
        (0.9999, "1.00 s"),
        (12.345, "12.3 s"),
        (123.4, "123 s"),
        (3600.0, "60.0 min"),
        (7.2e4, "20 h"),
        (16.7e-6, "16.7 µs"),
        (0.0, "0 s"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_durations_are_written_with_three_digits(seconds, text):
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1.523 * 2**30, "1.52 GiB"),
        (64 * 2**30, "64.0 GiB"),
        (131072, "128 KiB"),
        (12, "12.0 B"),
        (2**50, "1,024 TiB"),
        (None, "-"),
    ],
)
def test_sizes_are_written_in_binary_units(size, text):
    assert format_bytes(size) == text


def test_rates():
    assert format_rate(1656.2) == "1,656 tokens/s"
    assert format_rate(9.307, "requests") == "9.31 requests/s"
    assert format_rate(math.nan) == "-"


@given(st.floats(1e-6, 1e5))
def test_what_is_written_reads_back_to_three_digits(value):
    assert parse_duration_s(format_duration(value).replace(",", "")) == pytest.approx(
        value, rel=6e-3
    )
    assert parse_bytes(format_bytes(value * 1e6).replace(",", "")) == pytest.approx(
        value * 1e6, rel=6e-3
    )


def test_no_memory_is_a_size_only_where_asked():
    assert parse_bytes("0GiB", or_none=True) == 0
    with pytest.raises(ServefitError, match="must be positive"):
        parse_bytes("0GiB")
    with pytest.raises(ServefitError, match="0 or more"):
        parse_bytes("-1GiB", or_none=True)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_an_exact_number_is_read_back_as_the_very_same(value):
    assert float(exact(value)) == value


def test_exact_numbers_are_short():
    assert [exact(v) for v in (9.0, 0.1, 1e6, 2.5)] == ["9", "0.1", "1000000", "2.5"]
