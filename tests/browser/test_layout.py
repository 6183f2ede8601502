from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route

from tests.browser.actions import (
    ASKED,
    put,
    put_without_scrolling,
    settle,
    shown,
    until,
)
from tests.browser.conftest import Watched, watched

pytestmark = pytest.mark.browser

#: A value for each kind of change, on which things have moved.
UNSETTLING = {
    "engine": "tensorrt-llm",
    "output_tokens": "1",
    "correlation": "-1",
    "slo_ms": "0.1",
    "model": "meta-llama/Llama-3.1-405B",
    "input_tokens": "131072",
    "rate": "50",
    "tensor_parallel_size": "8",
    "gpu_memory_utilization": "0.05",
    "epsilon": "a text that is no number and much too long for its place",
    "workload": "chat.csv",
    "kv_cache_dtype": "fp8",
}
#: Places on the page of all that must keep them.
PLACES = """[...document.querySelectorAll(
    '.field, .field input, .field select, summary, button, .figures > div, pre, .chart, .bar')]
    .map(e => e.getBoundingClientRect()).map(r => [r.x, r.y, r.width, r.height]).flat()"""
#: Every text in sight that stands apart from its background by less than 4.5 : 1.
FAINT = """(() => {
  const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3)
    .map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (e instanceof HTMLElement && !/, 0\\)$/.test(colour)) return colour;
    }
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest('option, script')) continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    if (style.visibility === 'hidden' || (svg && style.fill === 'none')) continue;
    const [a, b] = [light(svg ? style.fill : style.color), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${e.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
})()"""


@pytest.mark.parametrize("width", [375, 1440])
def test_nothing_jumps_while_values_change(browser: Browser, origin: str, width: int) -> None:
    watch = watched(browser, origin, width, "light")
    page = watch.open(ASKED)
    page.locator("details").evaluate_all("all => all.forEach(e => { e.open = true; })")
    before = page.evaluate(PLACES)
    for name, value in UNSETTLING.items():
        usual = page.locator(f"#f-{name}").input_value()
        for each in (value, usual):
            put_without_scrolling(page, name, each)
            settle(page)
            moved = [abs(a - b) for a, b in zip(before, page.evaluate(PLACES), strict=True)]
            assert max(moved) <= 1, (name, each)
    assert watch.faults == []
    page.context.close()


def test_measured_runs_that_were_not_in_the_fit_are_hollow(
    watch: Watched, browser: Browser, hostile_origin: str
) -> None:
    page = watch.open(ASKED)
    fills = page.locator("#side-a [data-chart=throughput] path[aria-label*='in the fit']")
    found = fills.evaluate_all("all => all.map(e => getComputedStyle(e).fill)")
    assert sorted(set(found)) == ["rgb(0, 0, 0)", "rgba(0, 0, 0, 0)"]
    assert found.count("rgba(0, 0, 0, 0)") == 1
    assert page.get_by_text("measured, not in the fit").is_visible()
    put(page, "gpu", "A100-80GB")
    settle(page)
    assert not page.get_by_text("measured, not in the fit").is_visible()
    other = watched(browser, hostile_origin, 1440, "light")
    without = other.open("?input_tokens=250&output_tokens=390")
    assert "measured" not in without.locator("#side-a .key").inner_text()
    without.context.close()


def test_on_a_phone_the_answer_comes_first_and_stays_in_sight(
    browser: Browser, origin: str
) -> None:
    watch = watched(browser, origin, 375, "light")
    page = watch.open(ASKED)
    head, first = page.locator("#side-a .head").bounding_box(), None
    first = page.locator("#f-model").bounding_box()
    assert head is not None
    assert first is not None
    assert head["y"] + head["height"] < 300
    assert head["y"] < first["y"]
    page.locator("#f-epsilon").scroll_into_view_if_needed()
    brief = page.locator("#brief")
    assert brief.inner_text().startswith(shown(page)["head"])
    box = brief.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 901
    page.context.close()


def test_the_controls_end_within_the_window(watch: Watched) -> None:
    box = watch.open(ASKED).locator("#controls").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 900


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
    assert page.evaluate(FAINT) == []
    outside = page.evaluate(
        "[...document.querySelectorAll('article *, form *')].filter(e => e.clientWidth && "
        "!e.closest('svg') && e.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert outside == 0
    folder = Path(os.environ.get("SERVEFIT_SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"explore-{width}-{scheme}.png", full_page=True)
    assert watch.faults == []
    page.context.close()


def test_pictures_are_named_and_their_parts_are_not_read_out(watch: Watched) -> None:
    page = watch.open(ASKED)
    cap = shown(page)["head"].removeprefix("Batch cap ")
    tpot = page.locator("#side-a [data-chart=tpot]").get_attribute("aria-label")
    value = page.locator("#side-a [data-figure=tpot]").inner_text()
    assert tpot == (f"Time per output token (TPOT) against the batch; at batch cap {cap}: {value}")
    steps = page.locator("#side-a [data-chart=steps]").get_attribute("aria-label")
    assert steps is not None
    assert steps.count(" ms") >= 3
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    told = [node for node in nodes if not node["ignored"]]
    names = [
        node["name"]["value"]
        for node in told
        if node.get("role", {}).get("value") in ("image", "img")
    ]
    assert len(set(names)) == 6  # Five charts and the memory bar.
    assert not [name for name in names if "Vega" in name]
    roles = {str(node.get("role", {}).get("value")).lower() for node in told}
    assert not [role for role in roles if "graphics" in role]
    put(page, "slo_ms", "0.1")
    settle(page)
    label = page.locator("#side-a [data-chart=tpot]").get_attribute("aria-label")
    assert label is not None
    assert label.endswith("no batch cap is feasible")


def test_on_a_phone_mistakes_and_places_are_read_whole(browser: Browser, origin: str) -> None:
    watch = watched(browser, origin, 375, "light")
    page = watch.open(
        f"{ASKED}&compare=1&model=meta-llama/Llama-3.1-8B-Instruct"
        "&b.model=meta-llama/Llama-3.1-8B-Instruct&b.gpu=H200&b.tensor_parallel_size=2"
    )
    page.wait_for_selector("#side-b[data-answered]")
    clipped = """e => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight + 1"""
    for side in "ab":
        assert not page.locator(f"#side-{side} .place").evaluate(clipped)
    put(page, "correlation", "0.5")
    settle(page)
    brief = page.locator("#brief span")
    assert brief.inner_text().startswith("Correlation: ")
    assert brief.inner_text().endswith("give Input spread and Output spread")
    assert not brief.evaluate(clipped)
    assert brief.is_visible()
    assert watch.faults == []
    page.context.close()


TOPS = """() => [...document.querySelectorAll(
  '#side-a :is(.place, .said, .figures, .copy, .text, .chart, .bar, .warnings, .command, .exports)'
)].map(e => [e.classList[0], Math.round(e.getBoundingClientRect().top + scrollY)])"""


@pytest.mark.parametrize("width", [375, 1440])
def test_the_first_answer_moves_nothing(browser: Browser, origin: str, width: int) -> None:
    watch = watched(browser, origin, width, "light")
    page = watch.page
    held: list[Route] = []
    page.route("**/api/view?*", lambda route: held.append(route))
    page.goto(f"{origin}/{ASKED}")
    page.wait_for_selector("#side-a")
    while not held:
        page.wait_for_timeout(50)
    waiting = page.evaluate(TOPS)
    held[0].continue_()
    page.unroute("**/api/view?*")
    page.wait_for_selector("#side-a[data-answered]")
    assert page.evaluate(TOPS) == waiting
    page.goto(f"{origin}/{ASKED}&epsilon=junk")
    until(page, "document.querySelector('#side-a .problems')?.textContent")
    assert page.evaluate(TOPS) == waiting
    page.context.close()
