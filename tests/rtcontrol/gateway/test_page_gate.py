"""The page's question for a token, in headless Chromium: what its address, its memory and a code give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from chromium import Chromium
from gateway_served import Serve
from test_pairing import Shown

SITE = "http://robot.test"
DEAD = "a-token-that-was-revoked-0123456789"
LIVE = "rtcontrol.session.state === 'live'"
GATE = "document.getElementById('gate').open"
pytestmark = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


@pytest.fixture
def shown(serve: Serve, tmp_path: Path) -> Shown:
    return Shown(serve, tmp_path, origins=frozenset({SITE}))


@pytest.fixture
def page(shown: Shown, tmp_path: Path) -> Iterator[Chromium]:
    rule = f"--host-resolver-rules=MAP robot.test:80 127.0.0.1:{shown.served.gateway.port}"
    with Chromium(tmp_path / "profile", rule) as browser:
        yield browser


def pair(page: Chromium, shown: Shown) -> None:
    page.until(f"{GATE} && !document.getElementById('code-form').hidden")
    page.write(shown.code)
    page.key("Enter")
    page.until(LIVE)


def reload(page: Chromium) -> None:
    page.value("window.former = true")
    page.call("Page.reload")
    page.until("window.former === undefined && rtcontrol.session !== undefined")


# supabase/auth-js#302: a token stayed in the address's fragment, and in the history.
def test_a_token_of_the_address_that_was_refused_is_not_tried_again(page: Chromium, shown: Shown) -> None:
    page.open(f"{SITE}/?a=1#token={DEAD}")
    pair(page, shown)
    assert page.value("location.href") == f"{SITE}/?a=1"
    reload(page)
    page.until(LIVE)
    assert not page.value(GATE)


@pytest.mark.parametrize("token", [DEAD, "none"])
def test_where_that_of_the_address_is_refused_the_one_that_is_kept_is_tried(
    page: Chromium, shown: Shown, token: str
) -> None:
    page.open(f"{SITE}/")
    pair(page, shown)
    page.open("about:blank")
    page.open(f"{SITE}/#token={token}")
    page.until(LIVE)
    assert not page.value(GATE)
    assert page.value("location.hash") == ("" if token == DEAD else f"#token={token}")
