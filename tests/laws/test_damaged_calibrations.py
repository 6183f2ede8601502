"""A calibration that was edited or cut is refused in one line, never believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from servefit.calibration import Calibration
from servefit.errors import ServefitError
from servefit.hardware import UNKNOWN
from servefit.laws import get_law, predict, spread
from servefit.points import Points

from .conftest import GPU, LARGE, SMALL, slim_calibration, synthetic_runs

POINT = Points.of(SMALL, GPU, input_tokens=100, output_tokens=10, batch=4)
RUNS = synthetic_runs(slim_calibration(), (SMALL, LARGE))
RUNS = replace(RUNS, ttft_s=0.1 * RUNS.e2e_s, tpot_s=0.9 * RUNS.e2e_s / 100)
FITS = {name: get_law(name).fit(RUNS).to_json() for name in ("slim", "step", "llmvisor", "imai")}


def set_at(data: Any, path: tuple[str | int, ...], value: object) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("parameters",), 3),
        (("parameters", 0, "value"), "high"),
        (("parameters", 0, "value"), None),
        (("log_covariance",), [[1.0]]),
        (("residual_sd",), "small"),
        (("degrees_of_freedom",), "3"),
        (("settings",), []),
        (("ranges",), {"batch": {"low": "a", "high": 1}}),
        (("models", 0, "num_layers"), "a"),
        (("models", 0, "parameters"), None),
        (("models", 0, "attention", 0, "num_kv_heads"), None),
        (("hardware", 0, "memory_bandwidth_bytes_per_s"), -3),
        (("hardware", 0, "peak_flops_per_s"), {"bfloat16": 0}),
        (("hardware", 0, "peak_flops_per_s"), "fast"),
        (("notes",), "abc"),
        (("law",), 3),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(path: tuple[str | int, ...], value: object) -> None:
    data = json.loads(FITS["slim"])
    set_at(data, path, value)
    with pytest.raises(ServefitError, match=r"^fit\.json: the calibration is damaged") as caught:
        Calibration.from_json(json.dumps(data), "fit.json")
    assert len(str(caught.value).splitlines()) == 1


def swap_parameters(data: Any) -> None:
    data["parameters"].reverse()


def drop_a_parameter(data: Any) -> None:
    data["parameters"].pop()
    if data["log_covariance"] is not None:
        data["log_covariance"] = [row[:-1] for row in data["log_covariance"][:-1]]


def lose_settings(data: Any) -> None:
    data["settings"] = dict.fromkeys(data["settings"], "zzz") | {"decode_form": "zzz"}


def turn_negative(data: Any) -> None:
    data["parameters"][0]["value"] *= -1


@pytest.mark.parametrize("law", FITS)
@pytest.mark.parametrize("damage", [swap_parameters, drop_a_parameter])
def test_parameters_of_other_names_are_refused(law: str, damage: Callable[[Any], None]) -> None:
    data = json.loads(FITS[law])
    damage(data)
    fit = Calibration.from_json(json.dumps(data))
    with pytest.raises(ServefitError, match="holds the parameters"):
        predict(fit, POINT)


@pytest.mark.parametrize("law", ["slim", "step"])
def test_a_negative_parameter_is_refused(law: str) -> None:
    data = json.loads(FITS[law])
    turn_negative(data)
    fit = Calibration.from_json(json.dumps(data))
    with pytest.raises(ServefitError, match="must not be negative"):
        spread(fit, POINT)


@pytest.mark.parametrize("law", ["slim", "llmvisor", "imai"])
def test_damaged_settings_are_refused(law: str) -> None:
    data = json.loads(FITS[law])
    lose_settings(data)
    fit = Calibration.from_json(json.dumps(data))
    with pytest.raises(ServefitError, match="'zzz' is damaged"):
        predict(fit, POINT)


def test_efficiencies_and_rates_of_slim_are_not_taken_for_each_other() -> None:
    blind = replace(RUNS, points=replace(RUNS.points, hardware=(UNKNOWN,)))
    fit_of_rates = get_law("slim").fit(blind)
    with pytest.raises(ServefitError, match=f"the peaks of {GPU.name} are known, the fit is of"):
        predict(fit_of_rates, POINT)
    unknown = replace(POINT, hardware=(UNKNOWN,))
    with pytest.raises(ServefitError, match="the peaks of unknown are unknown, the fit's"):
        predict(Calibration.from_json(FITS["slim"]), unknown)
