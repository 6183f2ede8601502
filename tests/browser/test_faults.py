"""What goes wrong on the way to a picture is said, and the page goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.browser.actions import ASKED, answered, bad, marks, put, settle, shown, until
from tests.browser.conftest import Watched, watched

pytestmark = pytest.mark.browser


@contextmanager
def page_of(
    browser: Browser, origin: str, *expected: str, width: int = 1440
) -> Iterator[tuple[Page, Watched]]:
    """A page on which nothing but what is expected goes wrong."""
    watch = watched(browser, origin, width, "light")
    yield watch.page, watch
    watch.page.context.close()
    assert [f for f in watch.faults if not any(e in f for e in expected)] == []


@pytest.mark.parametrize("broken", ["/vega.js", "/api/charts*"])
def test_charts_that_cannot_be_drawn_are_said_and_the_advice_still_follows(
    browser: Browser, origin: str, broken: str
) -> None:
    with page_of(browser, origin, "500", "Failed to load") as (page, watch):
        page.route(f"{origin}{broken}", lambda route: route.fulfill(status=500, body="{}"))
        watch.open(ASKED)
        assert "charts could not be drawn" in page.locator("#side-a .problems").inner_text()
        head = shown(page)["head"]
        for slo_ms in ("6", "7"):
            put(page, "slo_ms", slo_ms)
            settle(page)
            assert shown(page)["head"] != head
            head = shown(page)["head"]
        if broken != "/vega.js":
            page.unroute(f"{origin}{broken}")
            put(page, "slo_ms", "8")
            settle(page)
            assert page.locator("#side-a .problems").inner_text() == ""
            assert marks(page)


def test_a_fault_while_drawing_takes_the_old_curves_away(watch: Watched) -> None:
    page = watch.open(ASKED)
    assert marks(page)
    page.evaluate("(() => { window.vegaEmbed = () => Promise.reject(new Error('full')); })()")
    page.click("#theme")
    until(page, "document.querySelector('#side-a .problems').textContent")
    assert "could not be drawn (full)" in page.locator("#side-a .problems").inner_text()
    assert marks(page) == []


def test_leaving_the_comparison_while_it_is_drawn(watch: Watched) -> None:
    page = watch.open(ASKED)
    for wait_ms in (0, 40, 80, 150, 250, 400):
        page.click("#compare")
        page.wait_for_timeout(wait_ms)
        page.click("#compare")
    page.wait_for_timeout(500)
    assert page.locator("article").count() == 1
    page.click("#compare")
    page.wait_for_selector("#side-b[data-answered]")
    assert page.locator("#side-b .chart svg").count() == 5


def test_themes_that_arrive_late_do_not_overtake(watch: Watched) -> None:
    page = watch.page
    held: list[Route] = []
    page.route("**/api/charts?theme=dark", lambda route: held.append(route))
    watch.open(ASKED)
    page.click("#theme")
    until(page, "document.documentElement.dataset.theme === 'dark'")
    page.click("#theme")
    until(page, "document.documentElement.dataset.theme === 'light'")
    put(page, "slo_ms", "6")
    settle(page)
    assert len(held) == 1
    held[0].continue_()
    page.wait_for_timeout(800)
    ink = page.locator("#side-a [data-chart=tpot] svg text").first.evaluate(
        "e => getComputedStyle(e).fill"
    )
    assert ink == "rgb(27, 36, 48)"
    page.click("#theme")
    until(
        page,
        "getComputedStyle(document.querySelector('#side-a [data-chart=tpot] svg text')).fill"
        " === 'rgb(232, 236, 241)'",
    )


def test_an_answer_that_is_no_json_is_not_taken_for_silence(browser: Browser, origin: str) -> None:
    with page_of(browser, origin, "400") as (page, watch):
        watch.open(ASKED)
        page.route("**/api/view*", lambda route: route.fulfill(status=400, body="Invalid"))
        put(page, "slo_ms", "6")
        until(page, "document.querySelector('#side-a .problems').textContent")
        said = page.locator("#side-a .problems").inner_text()
        assert said == "Not shown: the server refuses this (status 400)"


def test_copying_without_a_clipboard_selects_the_text(browser: Browser, origin: str) -> None:
    with page_of(browser, origin) as (page, watch):
        page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        watch.open(ASKED)
        page.click("#side-a .copy")
        assert page.locator("#side-a .copy").inner_text() == "Ctrl+C"
        assert page.evaluate("getSelection().toString()") == shown(page)["flags"]


def test_the_error_moves_to_the_control_of_the_constraint_that_fails_now(watch: Watched) -> None:
    page = watch.open(ASKED)
    put(page, "slo_ms", "0.1")
    settle(page)
    assert bad(page) == ["slo_ms"]
    put(page, "kv_capacity_tokens", "100")
    settle(page)
    assert "KV capacity allows a batch of 0" in shown(page)["rest"]
    assert bad(page) == ["kv_capacity_tokens"]
    put(page, "kv_capacity_tokens", "")
    settle(page)
    assert bad(page) == ["slo_ms"]


DRAG = """() => {
  const slider = document.querySelector('#f-slo_ms').parentElement.querySelector('[type=range]');
  for (let at = 0; at < 1000; at += 2) {
    slider.value = at;
    slider.dispatchEvent(new Event('input', { bubbles: true }));
  }
}"""


def test_a_url_that_the_browser_refuses_to_write_stops_nothing(
    browser: Browser, origin: str
) -> None:
    with page_of(browser, origin, "could not be written") as (page, watch):
        page.add_init_script(
            "window.writes = 0; history.replaceState = () => {"
            " window.writes += 1; throw new Error('too often'); };"
        )
        watch.open(ASKED)
        before = page.evaluate("window.writes")
        page.evaluate(DRAG)
        put(page, "slo_ms", "8.25")
        answered(page, "a", "slo_ms=8.25")
        page.wait_for_timeout(400)
        assert 1 <= page.evaluate("window.writes") - before < 20
