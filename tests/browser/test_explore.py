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
#: A value for each control that changes the answer to `ASKED`, and what else it takes to count.
CHANGES = {
    "model": ("facebook/opt-2.7b", ""),
    "gpu": ("A100-80GB", ""),
    "tensor_parallel_size": ("2", ""),
    "dtype": ("fp8", ""),
    "kv_cache_dtype": ("fp8", ""),
    "engine": ("sglang", ""),
    "workload": ("chat.csv", ""),
    "input_tokens": ("1000", ""),
    "output_tokens": ("100", ""),
    "cv_input": ("1", ""),
    "cv_output": ("1", ""),
    "correlation": ("0.5", "&cv_input=1&cv_output=1"),
    "slo": ("", ""),
    "slo_kind": ("times", ""),
    "slo_ms": ("6", ""),
    "slo_times": ("1.2", "&slo_kind=times"),
    "slo_batch": ("16", "&slo_kind=times"),
    "slo2": ("ttft", "&slo2_ms=8"),
    "slo2_kind": ("times", "&slo2=e2e&slo2_ms=3000"),
    "slo2_ms": ("2000", "&slo2=e2e"),
    "slo2_times": ("1.5", "&slo2=e2e&slo2_kind=times"),
    "slo2_batch": ("4", "&slo2=e2e&slo2_kind=times&slo2_times=1.5"),
    "slo3": ("e2e", "&slo3_ms=2500"),
    "slo3_kind": ("times", "&slo3=e2e&slo3_ms=3000"),
    "slo3_ms": ("2000", "&slo3=e2e"),
    "slo3_times": ("1.5", "&slo3=e2e&slo3_kind=times"),
    "slo3_batch": ("4", "&slo3=e2e&slo3_kind=times&slo3_times=1.5"),
    "confidence": ("0.5", ""),
    "rule": ("tolerance", ""),
    "epsilon": ("0.3", ""),
    "rate": ("100", ""),
    "gpu_memory_utilization": ("0.5", ""),
    "other_gib": ("10", ""),
    "kv_capacity_tokens": ("20000", ""),
    "chunked_prefill": ("no", ""),
    "max_num_batched_tokens": ("64", ""),
    "prefix_hit_rate": ("0.9", ""),
    "pipeline_parallel_size": ("2", ""),
    "draft_tokens": ("4", "&acceptance_rate=0"),
    "acceptance_rate": ("0.8", "&draft_tokens=4"),
}
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


def until(page: Page, true: str) -> None:
    """Wait for an expression; the page's policy forbids Playwright's own way, which evaluates."""
    for _ in range(600):
        if page.evaluate(true):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {true}")


def settle(page: Page) -> None:
    """Wait until what is shown is the answer, or an error, to what the URL asks for."""
    until(page, "document.querySelector('#side-a').dataset.asked === location.search.slice(1)")


def answered(page: Page, side: str, value: str) -> None:
    """Wait until a side has answered a query that holds a value."""
    until(page, f"document.querySelector('#side-{side}').dataset.answered.includes('{value}')")


def put(page: Page, name: str, value: str) -> None:
    control = page.locator(f"#f-{name}")
    control.evaluate("e => { e.closest('details').open = true; }")
    if control.evaluate("e => e.tagName") == "SELECT":
        control.select_option(value)
    else:
        control.fill(value)


def put_without_scrolling(page: Page, name: str, value: str) -> None:
    """As `put`, where it is not to matter what the browser brings into sight."""
    page.locator(f"#f-{name}").evaluate(
        """(e, value) => {
            e.value = value;
            e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input'));
        }""",
        value,
    )


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
    value, also = CHANGES[name]
    page = watch.open(f"{ASKED}{also}")
    before = shown(page)
    put(page, name, value)
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


def test_every_control_is_tested(watch: Watched) -> None:
    page = watch.open()
    names = page.locator("[id^=f-]").evaluate_all("all => all.map(e => e.id.slice(2))")
    assert set(names) == CHANGES.keys()


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
    by_arrow = float(page.locator("#f-slo_ms").input_value())
    assert by_arrow < value
    page.keyboard.press("PageDown")
    settle(page)
    by_page = float(page.locator("#f-slo_ms").input_value())
    assert by_page < by_arrow - 5 * (value - by_arrow)
    assert slider.get_attribute("aria-valuetext") == f"{by_page:g} ms"
    page.keyboard.press("End")
    settle(page)
    assert page.locator("#f-slo_ms").input_value() == "1000000"


def test_the_page_can_be_used_by_keyboard_alone(watch: Watched) -> None:
    page = watch.open(ASKED)
    for summary in page.locator("summary").all():
        summary.focus()
        if not summary.evaluate("e => e.parentElement.open"):
            page.keyboard.press("Enter")
    page.locator("#compare").focus()
    page.keyboard.press("Shift+Tab")
    reached = set()
    for _ in range(90):
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
        ("input_tokens", "-5", "outside 1 to 131,072"),
        ("epsilon", "lots", "is not a number"),
        ("slo_ms", "0.1", "no batch cap is feasible"),
        ("gpu_memory_utilization", "0.05", "no batch cap is feasible"),
        ("other_gib", "100", "no batch cap is feasible"),
        ("kv_capacity_tokens", "100", "no batch cap is feasible"),
        ("max_num_batched_tokens", "1", "no batch cap is feasible"),
        ("model", "meta-llama/Llama-3.1-405B", "no batch cap is feasible"),
        ("correlation", "0.5", "needs lengths that vary"),
        ("acceptance_rate", "0.5", "draft_tokens"),
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


def bad(page: Page) -> list[str]:
    found: list[str] = page.locator(".field.bad").evaluate_all("e => e.map(x => x.dataset.field)")
    return found


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


@pytest.mark.parametrize("export", ["report.html", "advice.json", "advice.png"])
def test_the_view_is_exported(watch: Watched, tmp_path: Path, export: str) -> None:
    page = watch.open(ASKED)
    with page.expect_download() as download:
        page.click(f"[data-export='{export}']")
    path = tmp_path / export
    download.value.save_as(path)
    head = shown(page)["head"]
    if export == "report.html":
        assert f"<strong>{head}" in path.read_text()
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
