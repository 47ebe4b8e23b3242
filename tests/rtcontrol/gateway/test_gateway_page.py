"""The page's modules, and the dialog for the access token in headless Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import chromium
import httpx
import pytest
from chromium import Chromium
from gateway_peer import TOKEN, Serve, Served

in_chromium = pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")


def test_client_modules_are_served(served: Served) -> None:
    answer = httpx.get(f"{served.url}client/index.js")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["cache-control"] == "no-cache"
    names = re.findall(r'from "\./(\w+\.js)"', answer.text)
    assert "client.js" in names
    assert {httpx.get(f"{served.url}client/{name}").status_code for name in names} == {200}
    assert httpx.get(f"{served.url}client/../../package.json").status_code == 404


# The dialog for the access token.

SITE = "http://robot.test"
DEAD = "a-token-that-was-revoked-0123456789"
LIVE = "rtcontrol.session.state === 'live'"
GATE = "document.getElementById('gate').open"


@pytest.fixture
def gated(serve: Serve, tmp_path: Path) -> Iterator[Chromium]:
    served = serve(token=TOKEN, origins=frozenset({SITE}), model="noop", host="0.0.0.0")
    rule = f"--host-resolver-rules=MAP robot.test:80 127.0.0.1:{served.gateway.port}"
    with Chromium(tmp_path / "profile", rule) as browser:
        yield browser


# supabase/auth-js#302: a token stayed in the address's fragment, and in the history.
@in_chromium
def test_refused_token_is_removed_and_typed_one_connects(gated: Chromium) -> None:
    gated.open(f"{SITE}/?a=1#token={DEAD}")
    gated.until(GATE)
    assert gated.value("location.href") == f"{SITE}/?a=1"
    assert gated.value("document.activeElement.id") == "token"
    gated.write(TOKEN)
    gated.key("Enter")
    gated.until(LIVE)
    assert not gated.value(GATE)


@in_chromium
@pytest.mark.parametrize(
    ("path", "live"),
    [
        ("", LIVE),
        ("crowd", "rtcontrol.crowd.state === 'live'"),
        ("live.html", "rtcontrol.last !== undefined && rtcontrol.socket !== null"),
    ],
)
def test_token_of_the_address_opens_each_page(gated: Chromium, path: str, live: str) -> None:
    if path == "live.html":  # it shows a session, so there must be one
        gated.open(f"{SITE}/#token={TOKEN}")
        gated.until(LIVE)
    gated.open(f"{SITE}/{path}#token={TOKEN}")
    gated.until(live, 60)
    assert not gated.value(GATE)
