"""What a user does on the page, and what is to be seen on it then."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

ASKED = "?input_tokens=250&output_tokens=390&slo_ms=9"


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


def bad(page: Page) -> list[str]:
    found: list[str] = page.locator(".field.bad").evaluate_all("e => e.map(x => x.dataset.field)")
    return found


#: Every row that a chart of a side shows, out of the elements that Vega drew: of what mark it is,
#: and its plain values.
DRAWN = """([side, chart]) => {
  const seen = new Set(), rows = [];
  for (const node of document.querySelectorAll(`#side-${side} [data-chart=${chart}] svg *`)) {
    for (const item of node.__data__?.mark?.items ?? []) {
      if (!item.datum || seen.has(item)) continue;
      seen.add(item);
      const plain = Object.entries(item.datum).filter(([, value]) => typeof value !== 'object');
      rows.push({ mark: item.mark.marktype, ...Object.fromEntries(plain) });
    }
  }
  return rows;
}"""


def drawn(page: Page, chart: str, side: str = "a") -> list[dict[str, Any]]:
    """See `DRAWN`."""
    found: list[dict[str, Any]] = page.evaluate(DRAWN, [side, chart])
    return found


def same_rows(rows: list[dict[str, Any]], expected: list[dict[str, Any]], *keys: str) -> bool:
    """Whether rows have the same values, in any order, as often as they like."""

    def values(of: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
        return {tuple(row[key] for key in keys) for row in of}

    return values(rows) == values(expected)


def axis(page: Page, chart: str, side: str) -> list[str]:
    """Labels of a chart's axes."""
    texts = page.locator(f"#side-{side} [data-chart={chart}] .mark-text.role-axis-label text")
    return texts.all_text_contents()
