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
