"""The page in a browser: it opens soon, is worked by keyboard alone, and fits small screens, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flown import recorded

from rtcontrol.telemetry import as_html
from tests.rtcontrol.gateway.chromium import BINARY, Chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason="there is no Chromium to show the page"),
]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(as_html.render([recorded(folder, seconds=60)], []))
    return (folder / "page.html").as_uri()


def test_an_hour_opens_within_two_seconds(browser: Chromium, tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", seconds=3600, saw=lambda k: f"x {k} " + 300 * "y")
    (tmp_path / "hour.html").write_text(as_html.render([run], []))
    browser.open((tmp_path / "hour.html").as_uri())
    browser.until("rtcontrol.opened_ms > 0")
    assert browser.value("rtcontrol.opened_ms") < 2000
    assert browser.errors == []


def test_misses_are_looked_at_by_keyboard_alone(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.until("rtcontrol.opened_ms > 0")
    while browser.value("document.activeElement.className") != "chart timeline":
        browser.key("Tab")
    browser.key("ArrowRight")
    first = browser.value("document.querySelector('.detail').textContent")
    assert "missed: decide" in first and "saw" in first and "acted instead" in first and "held" in first
    browser.key("ArrowRight")
    assert browser.value("document.querySelector('.detail').textContent") != first
    browser.key("ArrowLeft")
    assert browser.value("document.querySelector('.detail').textContent") == first
    browser.key("Escape")
    assert browser.value("document.querySelector('.detail').textContent") == ""
    assert browser.errors == []


def test_a_click_on_a_miss_and_on_a_burst_tells_of_it(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.until("rtcontrol.opened_ms > 0")
    browser.value("document.querySelector('.bursts button').click()")
    told = browser.value("document.querySelector('.detail h4').textContent")
    row = browser.value("document.querySelector('.bursts button').dataset.k")
    assert told.startswith(f"Tick {row} at") and "missed" in told


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280, 1920])
def test_nothing_is_wider_than_the_screen(browser: Chromium, page: str, width: int, scheme: str) -> None:
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    browser.open(page, width)
    browser.until("rtcontrol.opened_ms > 0")
    assert browser.value("document.documentElement.scrollWidth") <= width
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(246, 247, 249)", "dark": "rgb(16, 19, 22)"}[scheme]
    assert browser.errors == []
