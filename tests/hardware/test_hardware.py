"""Accelerators by name, from files and from the command line."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servefit.errors import ServefitError
from servefit.hardware import (
    UNKNOWN,
    Hardware,
    catalogue,
    get_hardware,
    hardware_from_options,
    load_hardware_file,
)

WANTED = [
    "H100-64GB",
    "H100",
    "H100-PCIe",
    "H100-NVL",
    "H200",
    "B200",
    "GH200",
    "A100-40GB",
    "A100-80GB",
    "L4",
    "L40S",
    "A10",
    "MI250",
    "MI300X",
]


@pytest.mark.parametrize("name", WANTED)
def test_the_catalogue_has_the_accelerators_of_the_field(name: str) -> None:
    hardware = get_hardware(name)
    assert hardware.name == name
    assert hardware.has_known_peaks
    assert hardware.memory_bytes is not None


def test_every_number_has_a_source() -> None:
    for hardware in catalogue():
        numbers = {
            "peak_flops_per_s": hardware.peak_flops_per_s,
            "memory_bandwidth_bytes_per_s": hardware.memory_bandwidth_bytes_per_s,
            "memory_bytes": hardware.memory_bytes,
            "link_bandwidth_bytes_per_s": hardware.link_bandwidth_bytes_per_s,
        }
        given_numbers = {name for name, value in numbers.items() if value}
        assert set(hardware.sources) == given_numbers, hardware.name
        assert all(len(source) > 15 for source in hardware.sources.values())


def test_figures_are_of_the_right_order() -> None:
    for hardware in catalogue():
        assert 50e12 < (hardware.peak_flops("bfloat16") or 0) < 3e15
        assert 250e9 < (hardware.memory_bandwidth_bytes_per_s or 0) < 10e12
        assert 20e9 < (hardware.memory_bytes or 0) < 300e9
        rates = hardware.peak_flops_per_s
        assert rates["float16"] == rates["bfloat16"]
        if "fp8" in rates:  # never below twice the 16-bit rate: a figure with sparsity would show
            assert 1.9 < rates["fp8"] / rates["bfloat16"] < 2.1
        if "fp4" in rates:
            assert rates["fp4"] / rates["bfloat16"] == 4


def test_every_accelerator_of_the_catalogue_names_its_maker() -> None:
    assert {hardware.vendor for hardware in catalogue()} == {"NVIDIA", "AMD"}
    assert get_hardware("AMD Instinct MI300X").vendor == "AMD"


def test_the_accelerator_of_the_paper() -> None:
    hardware = get_hardware("H100-64GB")
    assert hardware.peak_flops("float16") == 989e12
    assert hardware.memory_bandwidth_bytes_per_s == 1.62e12
    assert hardware.memory_bytes == 64 * 2**30


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", "H100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
    ],
)
def test_names_as_drivers_print_them(name: str, expected: str) -> None:
    assert get_hardware(name).name == expected


@pytest.mark.parametrize("name", ["A100", "a100", "NVIDIA A100", "A100-SXM4"])
def test_a_bare_a100_is_refused_with_both_choices(name: str) -> None:
    with pytest.raises(ServefitError, match="ambiguous: say A100-40GB or A100-80GB"):
        get_hardware(name)


def test_an_unknown_name_is_refused_with_the_nearest_and_the_remedy() -> None:
    with pytest.raises(ServefitError, match=r"'H10O' .*did you mean .*H100.*bandwidth=.*unknown"):
        get_hardware("H10O")


def test_unknown_is_an_accelerator_without_figures() -> None:
    assert get_hardware("unknown") is UNKNOWN
    assert not UNKNOWN.has_known_peaks
    assert UNKNOWN.peak_flops("bfloat16") is None


def test_formats_without_a_rate_of_their_own_compute_in_sixteen_bits() -> None:
    a100 = get_hardware("A100-80GB")
    assert a100.peak_flops("fp8") == a100.peak_flops("int4") == 312e12
    assert a100.peak_flops("int8") == 624e12
    assert get_hardware("B200").peak_flops("nvfp4") == 9e15


def test_an_accelerator_can_be_a_key() -> None:
    assert {get_hardware("L4"): 1}[get_hardware("l4")] == 1


MINE = """
[[accelerator]]
name = "Mine"
aliases = ["Mine-8GB"]
peak_flops_per_s = { bf16 = 1e14 }
memory_bandwidth_bytes_per_s = 5e11
sources = { peak_flops_per_s = "measured" }
"""


def test_a_file_of_the_users_own_comes_before_the_catalogue(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINE + MINE.replace('"Mine"', '"L4"').replace("Mine-8GB", "other"))
    mine = get_hardware("mine-8gb", [file])
    assert mine.peak_flops("bfloat16") == 1e14
    assert mine.memory_bytes is None
    assert get_hardware("L4", [str(file)]).peak_flops("bfloat16") == 1e14
    assert [hardware.name for hardware in load_hardware_file(file)] == ["Mine", "L4"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"holds no \[\[accelerator\]\]"),
        ("accelerator = 3", r"holds no \[\[accelerator\]\]"),
        ("[[accelerator]", "is not TOML"),
        ("[[accelerator]]", "has no name"),
        ('[[accelerator]]\nname = "x"\nspeed = 3', "unknown key 'speed'"),
        ('[[accelerator]]\nname = "x"\nmemory_bytes = "80"', "must be a number"),
        ('[[accelerator]]\nname = "x"\nmemory_bytes = -1', "must be positive"),
        ('[[accelerator]]\nname = "x"\nmemory_bytes = nan', "must be positive"),
        ('[[accelerator]]\nname = "x"\nmemory_bytes = 80', "below 1e\\+06"),
        ('[[accelerator]]\nname = "x"\npeak_flops_per_s = 3', "must be a table"),
        ('[[accelerator]]\nname = "x"\npeak_flops_per_s = { fp9 = 1e12 }', "'fp9'"),
        ('[[accelerator]]\nname = "x"\naliases = "y"', "must be a list"),
        ('[[accelerator]]\nname = "x"\nsources = { a = 1 }', "table of strings"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ServefitError, match=match):
        get_hardware("x", [file])


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServefitError, match=r"absent\.toml: cannot be read"):
        load_hardware_file(tmp_path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ServefitError, match="not UTF-8"):
        load_hardware_file(binary)


def test_an_accelerator_on_the_command_line() -> None:
    mine = hardware_from_options("name=Mine, flops=312e12, bandwidth=1.5e12, memory=40GB")
    assert mine == Hardware(
        name="Mine",
        peak_flops_per_s={"float16": 312e12, "bfloat16": 312e12},
        memory_bandwidth_bytes_per_s=1.5e12,
        memory_bytes=40e9,
        sources=mine.sources,
    )
    assert set(mine.sources.values()) == {"given by the user"}
    units = hardware_from_options(
        "name=M,flops=1.5PFLOPS,fp8=3P,bandwidth=2TB/s,memory=40GiB,link=50GB/s"
    )
    assert units.peak_flops("fp8") == 3e15
    assert units.peak_flops("bfloat16") == 1.5e15
    assert units.memory_bandwidth_bytes_per_s == 2e12
    assert units.memory_bytes == 40 * 2**30
    assert units.link_bandwidth_bytes_per_s == 50e9


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("flops=1e12", "has no name"),
        ("name=x,flops", "expected key=value"),
        ("name=x,speed=1e12", "'speed' is not known"),
        ("name=x,flops=fast", "is no size"),
        ("name=x,flops=-1e12", "must be positive"),
        ("name=x,bandwidth=nan", "must be positive"),
        ("name=x,memory=80", "below 1e\\+06"),
        ("name=x,memory=", "expected key=value"),
    ],
)
def test_wrong_options_say_what_is_wrong(text: str, match: str) -> None:
    with pytest.raises(ServefitError, match=match):
        hardware_from_options(text)


@given(st.text(max_size=40))
def test_any_text_gives_an_accelerator_or_our_own_error(text: str) -> None:
    messages = []
    for read in (hardware_from_options, get_hardware):
        try:
            hardware = read(text)
        except ServefitError as error:
            messages.append(str(error))
        else:
            assert all(map(math.isfinite, hardware.peak_flops_per_s.values()))
    assert not any("\n" in message for message in messages)


def test_a_file_or_a_description_stands_in_place_of_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    one = '[[accelerator]]\nname = "Mine"\nmemory_bandwidth_bytes_per_s = 1e12\n'
    file.write_text(one)
    assert get_hardware(str(file)).memory_bandwidth_bytes_per_s == 1e12
    assert get_hardware("name=Mine,bandwidth=2TB/s").memory_bandwidth_bytes_per_s == 2e12
    file.write_text(one + one.replace("Mine", "Other"))
    assert get_hardware(f"{file}:Other").name == "Other"
    with pytest.raises(ServefitError, match=r"holds 2 accelerators: say .*mine\.toml:Mine or"):
        get_hardware(str(file))
