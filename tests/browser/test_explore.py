from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.conftest import Watched, watched
from tests.cli.conftest import Run
from tests.report.conftest import HOSTILE

pytestmark = pytest.mark.browser

ASKED = "?input_tokens=250&output_tokens=390&slo_ms=9"
#: A value for each control that changes the answer to `ASKED`.
CHANGES = {
    "model": "facebook/opt-2.7b",
    "gpu": "A100-80GB",
    "tensor_parallel_size": "2",
    "dtype": "fp8",
    "kv_cache_dtype": "fp8",
    "workload": "chat.csv",
    "input_tokens": "1000",
    "output_tokens": "100",
    "cv_input": "1",
    "cv_output": "1",
    "slo": "",
    "slo_ms": "6",
    "confidence": "0.5",
    "rule": "tolerance",
    "epsilon": "0.3",
    "rate": "100",
    "engine": "sglang",
    "gpu_memory_utilization": "0.5",
    "other_gib": "10",
    "max_num_batched_tokens": "64",
    "kv_capacity_tokens": "20000",
}


def until(page: Page, true: str) -> None:
    """Wait for an expression; the page's policy forbids Playwright's own way, which evaluates."""
    for _ in range(600):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {true}")


def settle(page: Page) -> None:
    """Wait until what is shown is what the URL asks for."""
    until(page, "document.querySelector('#side-a').dataset.answered === location.search.slice(1)")


def answered(page: Page, side: str, value: str) -> None:
    """Wait until a side has answered a query that holds a value."""
    until(page, f"document.querySelector('#side-{side}').dataset.answered.includes('{value}')")


def put(page: Page, name: str, value: str) -> None:
    control = page.locator(f"#f-{name}")
    if control.evaluate("e => e.tagName") == "SELECT":
        control.select_option(value)
    else:
        control.fill(value)


def shown(page: Page, side: str = "a") -> dict[str, Any]:
    """What a side says, as text and as the values behind the text."""
    article = page.locator(f"#side-{side}")
    figures = article.locator("[data-figure]").evaluate_all(
        "all => Object.fromEntries(all.map(e => [e.dataset.figure, Number(e.dataset.value)]))"
    )
    return {
        "head": article.locator(".head").inner_text(),
        "rest": article.locator(".rest").inner_text(),
        "flags": article.locator(".text").inner_text(),
        "command": article.locator(".command").inner_text(),
        "figures": figures,
    }


def marks(page: Page) -> list[str]:
    """Labels in the throughput chart."""
    texts = page.locator("#side-a [data-chart=throughput] svg text").all_text_contents()
    return [text for text in texts if "cap " in text]


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_control_changes_the_advice_and_the_values_are_those_of_advise(
    watch: Watched, run: Run, origin: str, folder: Path, name: str
) -> None:
    page = watch.open(ASKED)
    before = shown(page)
    put(page, name, CHANGES[name])
    settle(page)
    after = shown(page)
    assert after != before
    words = shlex.split(after["command"])
    words = [str(folder / w) if w in ("fit.json", "chat.csv") else w for w in words]
    advice = json.loads(run(*words[1:], "--json").out)
    assert after["head"] == f"Batch cap {advice['batch_cap']}"
    assert f"cap {advice['batch_cap']}" in marks(page)[0]
    assert after["flags"] == advice["settings"]["text"]
    figures, found = after["figures"], advice["prediction"]
    assert figures["throughput"] == found["total_tokens_per_s"]
    assert figures["tpot"] == pytest.approx(1e3 * found["tpot_s"], rel=1e-12)
    assert figures["ttft"] == pytest.approx(1e3 * found["ttft_s"], rel=1e-12)
    assert figures["e2e"] == found["e2e_s"]
    assert figures["kv"] * 2**30 == pytest.approx(advice["kv_bytes"], rel=1e-12)
    if name == "rate":
        assert figures["replicas"] == advice["replicas"]["count"]


def test_the_correlation_counts_where_lengths_vary(watch: Watched) -> None:
    page = watch.open(f"{ASKED}&cv_input=1&cv_output=1")
    before = shown(page)
    put(page, "correlation", "0.5")
    settle(page)
    assert shown(page)["figures"] != before["figures"]


def test_every_control_is_tested(watch: Watched) -> None:
    page = watch.open()
    names = page.locator("[data-field]").evaluate_all("all => all.map(e => e.dataset.field)")
    assert set(names) == CHANGES.keys() | {"correlation"}


def test_dragging_a_slider_and_arrow_keys_change_the_answer(watch: Watched) -> None:
    page = watch.open(ASKED)
    first = shown(page)["head"]
    slider = page.locator("[data-field=slo_ms] input[type=range]")
    box = slider.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.4, middle, steps=8)
    page.mouse.up()
    settle(page)
    dragged = shown(page)["head"]
    assert dragged != first
    value = float(page.locator("#f-slo_ms").input_value())
    slider.focus()
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert float(page.locator("#f-slo_ms").input_value()) < value


def test_the_page_can_be_used_by_keyboard_alone(watch: Watched) -> None:
    page = watch.open(ASKED)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"compare", "theme", "f-model", "f-slo_ms", "f-kv_capacity_tokens", "copy"} <= reached
    page.locator("#compare").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#side-b[data-answered]")


def test_a_view_comes_back_from_its_url(watch: Watched, browser: Browser, origin: str) -> None:
    page = watch.open(ASKED)
    page.click("#compare")
    page.wait_for_selector("#side-b[data-answered]")
    put(page, "kv_cache_dtype", "fp8")
    put(page, "epsilon", "0.25")
    answered(page, "b", "0.25")
    page.check("input[name=editing][value=a]")
    put(page, "slo_ms", "8.5")
    answered(page, "a", "8.5")
    sides = shown(page), shown(page, "b")
    assert sides[0] != sides[1]
    other = watched(browser, origin, 1440, "light")
    again = other.open(page.url.removeprefix(f"{origin}/"))
    again.wait_for_selector("#side-b[data-answered]")
    assert (shown(again), shown(again, "b")) == sides
    assert again.url == page.url
    assert other.faults == []
    other.page.context.close()


def test_leaving_the_comparison_keeps_the_first(watch: Watched) -> None:
    page = watch.open(ASKED)
    alone = shown(page)
    page.click("#compare")
    page.wait_for_selector("#side-b[data-answered]")
    put(page, "gpu", "A100-80GB")
    answered(page, "b", "A100")
    assert "against A" in page.locator("#side-b .figures").inner_text()
    page.click("#compare")
    assert page.locator("#side-b").count() == 0
    assert shown(page) == alone
    assert page.locator("#f-gpu").input_value() == "H100"
    assert "compare" not in page.url


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("input_tokens", "-5", "outside 1 to 131072"),
        ("epsilon", "lots", "is not a number"),
        ("slo_ms", "0.1", "no batch cap is feasible"),
        ("correlation", "0.5", "needs lengths that vary"),
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
    put(page, name, {"input_tokens": "250", "epsilon": "0.1", "slo_ms": "9"}.get(name, "0"))
    until(page, "!document.querySelector('.field.bad')")


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
    assert problems.inner_text() == "Not shown: at most: 'junk' is not a number"
    assert shown(page)["head"] == head


def test_the_mistakes_of_a_side_stand_in_its_own_article(watch: Watched) -> None:
    page = watch.open("?compare=1&b.slo_ms=junk")
    until(page, "document.querySelector('#side-b .problems').textContent")
    text = page.locator("#side-b .problems").inner_text()
    assert text == "Nothing to show: at most: 'junk' is not a number"
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


def test_nothing_jumps_while_values_change(watch: Watched) -> None:
    page = watch.open(ASKED)
    places = (
        "[...document.querySelectorAll('.chart, .field')].map(e => e.getBoundingClientRect().top)"
    )
    before = page.evaluate(places)
    for name, value in (("slo_ms", "7"), ("input_tokens", "900"), ("slo_ms", "0.1")):
        put(page, name, value)
        settle(page)
        assert page.evaluate(places) == pytest.approx(before, abs=1)


@pytest.mark.parametrize("export", ["report.html", "advice.json", "advice.png"])
def test_the_view_is_exported(watch: Watched, tmp_path: Path, export: str) -> None:
    page = watch.open(ASKED)
    with page.expect_download() as download:
        page.click(f"[data-export='{export}']")
    path = tmp_path / export
    download.value.save_as(path)
    head = shown(page)["head"]
    if export == "report.html":
        assert f"{head}:" in path.read_text()
    elif export == "advice.json":
        assert head == f"Batch cap {json.loads(path.read_text())['batch_cap']}"
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_it_fits_phones_and_desks_in_light_and_dark(
    browser: Browser, origin: str, tmp_path: Path, width: int, scheme: str
) -> None:
    watch = watched(browser, origin, width, scheme)
    page = watch.open(f"{ASKED}{'&compare=1&b.slo_ms=7' if scheme == 'dark' else ''}")
    if scheme == "dark":
        page.wait_for_selector("#side-b[data-answered]")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    titles = page.locator("#side-a .chart svg").all_text_contents()
    for unit in ("tokens/s", "(ms)", "(s)", "requests"):
        assert any(unit in text for text in titles), unit
    assert "GiB" in page.locator("#side-a .parts").inner_text()
    outside = page.evaluate(
        "[...document.querySelectorAll('article *, form *')].filter(e => e.clientWidth && "
        "!e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert outside == 0
    folder = Path(os.environ.get("SERVEFIT_SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"explore-{width}-{scheme}.png", full_page=True)
    assert watch.faults == []
    page.context.close()
