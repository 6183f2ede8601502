from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from tests.browser.actions import (
    ASKED,
    bad,
    marks,
    put,
    settle,
    shown,
    until,
)
from tests.browser.conftest import Watched, watched
from tests.report.conftest import HOSTILE

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("input_tokens", "-5", "outside 1 to 131,072"),
        ("epsilon", "lots", "is not a number"),
        ("slo_ms", "0.1", "no batch cap is feasible"),
        ("gpu_memory_utilization", "0.05", "no batch cap is feasible"),
        ("other_gib", "100", "no batch cap is feasible"),
        ("kv_capacity_tokens", "100", "no batch cap is feasible"),
        ("max_num_batched_tokens", "1", "no batch cap is feasible"),
        ("model", "meta-llama/Llama-3.1-405B", "no batch cap is feasible"),
        ("correlation", "0.5", "vary: give Input spread and Output spread"),
        ("acceptance_rate", "0.5", "Draft tokens"),
    ],
)
def test_what_cannot_be_is_said_beside_its_field(
    watch: Watched, name: str, value: str, said: str
) -> None:
    page = watch.open(ASKED)
    put(page, name, value)
    row = page.locator(f"[data-field={name}]")
    page.wait_for_selector(f"[data-field={name}].bad")
    assert said in row.locator(".hint").inner_text()
    assert page.locator(f"#f-{name}").get_attribute("aria-invalid") == "true"
    assert page.locator(".field.bad").count() == 1
    usual = {"input_tokens": "250", "epsilon": "0.1", "slo_ms": "9", "correlation": "0"}
    usual |= {"gpu_memory_utilization": "0.9", "model": "facebook/opt-1.3b"}
    put(page, name, usual.get(name, "0" if name == "acceptance_rate" else ""))
    until(page, "!document.querySelector('.field.bad')")


def test_what_leaves_no_cap_is_said_beside_what_was_changed_last(watch: Watched) -> None:
    page = watch.open(
        "?model=meta-llama/Llama-2-70b-hf&tensor_parallel_size=4&input_tokens=250"
        "&output_tokens=390&slo_ms=90"
    )
    assert bad(page) == []
    put(page, "tensor_parallel_size", "1")
    settle(page)
    assert bad(page) == ["tensor_parallel_size"]
    put(page, "rate", "50")
    settle(page)
    assert bad(page) == ["tensor_parallel_size"]
    put(page, "tensor_parallel_size", "4")
    settle(page)
    assert bad(page) == []
    put(page, "input_tokens", "131072")
    put(page, "output_tokens", "32768")
    put(page, "gpu", "L4")
    settle(page)
    assert len(bad(page)) == 1


def test_one_output_token_has_no_tpot_and_both_remedies_work(watch: Watched) -> None:
    page = watch.open(ASKED)
    put(page, "output_tokens", "1")
    settle(page)
    hint = page.locator("[data-field=slo].bad .hint").inner_text()
    assert "bound E2E or TTFT instead, or ask for 2 or more" in hint
    put(page, "output_tokens", "2")
    settle(page)
    assert bad(page) == []
    put(page, "output_tokens", "1")
    put(page, "slo", "e2e")
    put(page, "slo_ms", "9000")
    settle(page)
    assert bad(page) == []
    assert shown(page)["head"].startswith("Batch cap")


def test_each_kind_of_slo_shows_its_own_limit(watch: Watched) -> None:
    page = watch.open(f"{ASKED}&slo2=e2e&slo2_kind=times")
    assert page.locator("#f-slo2_times").is_visible()
    assert page.locator("#f-slo2_batch").is_visible()
    assert not page.locator("#f-slo2_ms").is_visible()
    put(page, "slo2_kind", "ms")
    settle(page)
    assert page.locator("#f-slo2_ms").is_visible()
    assert not page.locator("#f-slo2_batch").is_visible()
    assert "--slo e2e=1000ms" in shown(page)["command"]


def test_an_unknown_model_in_the_url_is_named(watch: Watched) -> None:
    page = watch.page
    page.goto(f"{watch.origin}/?model=no/such-model")
    page.wait_for_selector("[data-field=model].bad")
    assert "none of the choices" in page.locator("#h-model").inner_text()


def test_a_url_with_a_mistake_says_so_in_place_of_an_answer(watch: Watched) -> None:
    page = watch.page
    page.goto(f"{watch.origin}/?slo_ms=")
    problems = page.locator("#side-a .problems")
    until(page, "document.querySelector('#side-a .problems')?.textContent")
    assert problems.inner_text().startswith("Nothing to show: at most: give a number")
    assert not page.locator("#side-a .copy").is_visible()
    assert not page.locator("#side-a [data-export]").first.is_visible()
    put(page, "slo_ms", "9")
    page.wait_for_selector("#side-a[data-answered]")
    assert problems.inner_text() == ""
    assert page.locator("#side-a .copy").is_visible()
    assert marks(page)
    head = shown(page)["head"]
    put(page, "slo_ms", "junk")
    until(page, "document.querySelector('#side-a .problems').textContent")
    said = "Not shown: at most: 'junk' is not a number: write it as 1200 or 0.5"
    assert problems.inner_text() == said
    assert shown(page)["head"] == head
    exports = page.locator("#side-a [data-export]")
    assert exports.evaluate_all("all => all.every(e => !e.hasAttribute('href'))")
    put(page, "slo_ms", "8")
    settle(page)
    assert exports.evaluate_all("all => all.every(e => e.href.includes('slo_ms=8'))")


def test_the_mistakes_of_a_side_stand_in_its_own_article(watch: Watched) -> None:
    page = watch.open("?compare=1&b.slo_ms=junk")
    until(page, "document.querySelector('#side-b .problems').textContent")
    text = page.locator("#side-b .problems").inner_text()
    assert text.startswith("Nothing to show: at most: 'junk' is not a number")
    assert page.locator("#side-a .problems").inner_text() == ""
    assert not page.locator("#side-b .copy").is_visible()
    assert page.locator("#side-a .copy").is_visible()


def test_a_hostile_name_is_text(browser: Browser, hostile_origin: str) -> None:
    watch = watched(browser, hostile_origin, 1440, "light")
    page = watch.open("?input_tokens=250&output_tokens=390")
    assert HOSTILE in page.locator("#side-a .place").inner_text()
    assert page.locator("img").count() == 0
    page.goto(f"{hostile_origin}/?model=%3Cimg%20src=x%20onerror=alert(1)%3E")
    page.wait_for_selector("[data-field=model].bad")
    assert page.locator("img").count() == 0
    assert watch.faults == []
    page.context.close()


def test_a_mistake_in_a_hidden_row_shows_it_until_it_is_mended(watch: Watched) -> None:
    page = watch.page
    page.goto(f"{watch.origin}/{ASKED}&slo_times=abc")
    page.wait_for_selector("[data-field=slo_times].bad")
    assert page.locator("#f-slo_times").is_visible()
    assert "not a number" in page.locator("#h-slo_times").inner_text()
    put(page, "slo_times", "2")
    settle(page)
    assert not page.locator("#f-slo_times").is_visible()
    assert shown(page)["head"].startswith("Batch cap")


def test_what_no_control_is_named_in_a_url_is_said_and_left_out(watch: Watched) -> None:
    page = watch.page
    page.add_init_script(
        "Storage.prototype.getItem = Storage.prototype.setItem ="
        " () => { throw new Error('no storage'); };"
    )
    watch.open(f"{ASKED}&utm_source=x&constructor=y&b.compared=z")
    assert shown(page)["head"].startswith("Batch cap")
    said = page.locator("#notice").inner_text()
    assert said == "No control is named utm_source, constructor, b.compared: left out."
    page.click("#theme")
    put(page, "slo_ms", "7")
    settle(page)
    assert "utm_source" not in page.url
    assert "slo_ms=7" in page.url
