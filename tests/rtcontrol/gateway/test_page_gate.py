"""The page's dialog for the access token, in headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from chromium import Chromium
from gateway_served import TOKEN, Serve

SITE = "http://robot.test"
DEAD = "a-token-that-was-revoked-0123456789"
LIVE = "rtcontrol.session.state === 'live'"
GATE = "document.getElementById('gate').open"
pytestmark = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


@pytest.fixture
def page(serve: Serve, tmp_path: Path) -> Iterator[Chromium]:
    served = serve(token=TOKEN, origins=frozenset({SITE}), model="noop", host="0.0.0.0")
    rule = f"--host-resolver-rules=MAP robot.test:80 127.0.0.1:{served.gateway.port}"
    with Chromium(tmp_path / "profile", rule) as browser:
        yield browser


# supabase/auth-js#302: a token stayed in the address's fragment, and in the history.
def test_refused_token_of_the_address_is_removed_and_a_typed_one_connects(page: Chromium) -> None:
    page.open(f"{SITE}/?a=1#token={DEAD}")
    page.until(GATE)
    assert page.value("location.href") == f"{SITE}/?a=1"
    assert page.value("document.activeElement.id") == "token"
    page.write(TOKEN)
    page.key("Enter")
    page.until(LIVE)
    assert not page.value(GATE)


@pytest.mark.parametrize(
    ("path", "live"),
    [
        ("", LIVE),
        ("crowd", "rtcontrol.crowd.state === 'live'"),
        ("live.html", "rtcontrol.last !== undefined && rtcontrol.socket !== null"),
    ],
)
def test_token_of_the_address_opens_each_page(page: Chromium, path: str, live: str) -> None:
    if path == "live.html":  # it shows a session, so there must be one
        page.open(f"{SITE}/#token={TOKEN}")
        page.until(LIVE)
    page.open(f"{SITE}/{path}#token={TOKEN}")
    page.until(live, 60)
    assert not page.value(GATE)
