"""Sliders, keys, and controls that do not count."""

from __future__ import annotations

import pytest

from tests.browser.actions import ASKED, bad, put, settle
from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser

ENDS = """(low) => {
  for (const slider of document.querySelectorAll('#fields input[type=range]:enabled')) {
    slider.closest('details').open = true;
    if (!slider.getClientRects().length) continue;
    slider.value = low ? slider.min : slider.max;
    slider.dispatchEvent(new Event('input'));
  }
}"""
VALUES = """Object.fromEntries([...document.querySelectorAll('#fields input[type=range]')]
  .filter(e => e.getClientRects().length)
  .map(e => [e.closest('.field').dataset.field, Number(e.parentElement.querySelector('[type=text]:not(.second)').value)]))"""  # noqa: E501


@pytest.mark.parametrize("low", [True, False])
def test_the_ends_of_every_slider_are_those_of_its_field(watch: Watched, low: bool) -> None:
    page = watch.open(f"{ASKED}&slo2=e2e&slo3=ttft")
    fields = page.request.get(f"{watch.origin}/api/options").json()["fields"]
    ends = {f["name"]: f["low" if low else "high"] for f in fields}
    page.evaluate(ENDS, low)
    by_mouse = page.evaluate(VALUES)
    assert len(by_mouse) >= 12
    assert by_mouse == {name: ends[name] for name in by_mouse}
    for name in by_mouse:
        slider = page.locator(f"[data-field={name}] input[type=range]")
        slider.press("ArrowRight" if low else "ArrowLeft")
        assert page.evaluate(VALUES)[name] != ends[name], name
        slider.press("Home" if low else "End")
    assert page.evaluate(VALUES) == by_mouse
    settle(page)
    said = page.locator(".field.bad .hint").all_inner_texts()
    assert not any("outside" in text for text in said), said


def test_a_key_on_a_slider_beside_junk_goes_on_from_the_slider(watch: Watched) -> None:
    page = watch.open(ASKED)
    put(page, "slo_ms", "junk")
    page.locator("[data-field=slo_ms] input[type=range]").press("ArrowRight")
    assert float(page.locator("#f-slo_ms").input_value()) > 0
    settle(page)
    assert bad(page) == []


def test_keys_with_a_modifier_are_the_browsers(watch: Watched) -> None:
    page = watch.open(ASKED)
    slider = page.locator("[data-field=slo_ms] input[type=range]")
    left_alone = slider.evaluate(
        """e => e.dispatchEvent(new KeyboardEvent(
            'keydown', { key: 'ArrowLeft', altKey: true, cancelable: true }))"""
    )
    assert left_alone
    assert page.locator("#f-slo_ms").input_value() == "9"


def test_controls_that_do_nothing_cannot_be_changed(watch: Watched) -> None:
    page = watch.open(ASKED)
    lengths = ("input_tokens", "output_tokens", "cv_input", "cv_output", "correlation")
    limits = ("slo_kind", "slo_ms", "slo_times", "slo_batch")
    for switch, idle_at, live_at, names in (
        ("workload", "chat.csv", "", lengths),
        ("slo", "", "tpot", limits),
    ):
        put(page, switch, idle_at)
        settle(page)
        for name in names:
            assert page.locator(f"#f-{name}").is_disabled(), name
        sliders = page.locator(", ".join(f"[data-field={n}] input[type=range]" for n in names))
        assert sliders.evaluate_all("all => all.every(e => e.disabled)")
        put(page, switch, live_at)
        settle(page)
        for name in names:
            assert page.locator(f"#f-{name}").is_enabled(), name
    for name in ("slo2_kind", "slo2_ms", "slo3_ms"):
        assert page.locator(f"#f-{name}").is_disabled()


def test_a_mistake_in_a_control_that_does_nothing_can_be_mended(watch: Watched) -> None:
    page = watch.open(f"{ASKED}&workload=chat.csv")
    assert page.locator("#f-input_tokens").is_disabled()
    page = watch.open(ASKED)
    put(page, "input_tokens", "junk")
    settle(page)
    put(page, "workload", "chat.csv")
    settle(page)
    assert bad(page) == ["input_tokens"]
    put(page, "input_tokens", "7")
    settle(page)
    assert bad(page) == []
    assert page.locator("#f-input_tokens").is_disabled()
