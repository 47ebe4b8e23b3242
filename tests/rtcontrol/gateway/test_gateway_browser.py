"""A page in Chromium at the address that the server prints, which asks this machine by its other name."""

from __future__ import annotations

import json
from pathlib import Path

import chromium
import pytest
from chromium import Chromium
from gateway_served import TURN, Serve

from tests.helpers.processes import until

SAID = {"messages": [{"role": "user", "content": "Turn left."}], "tools": [TURN]}
# As SimpleTool's games ask, and as OpenAI's client does.
ASK = """(async () => {
    const headers = {"content-type": "application/json", ...HEADERS};
    const answer = await fetch("URL", {method: "POST", headers, body: JSON.stringify(BODY)});
    return JSON.stringify([await answer.json(), answer.headers.get("x-rtcontrol-warning")]);
})()"""
OPENAI = {"authorization": "Bearer none", "x-stainless-lang": "js", "x-stainless-retry-count": "0"}


@pytest.mark.skipif(chromium.BINARY is None, reason="there is no Chromium to show the page")
def test_a_page_at_the_printed_address_may_ask_localhost(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "game.html").write_text("<p>a game")
    served = serve(static=tmp_path / "pages")
    there = f"http://localhost:{served.gateway.port}/v1/"
    with Chromium(tmp_path / "profile") as page:
        page.open(f"{served.url}static/game.html")
        until(lambda: page.value("document.body?.textContent") == "a game", "the page did not come", 20, 0.05)
        for path, headers, body in (
            ("function_call", {}, SAID),
            ("chat/completions", OPENAI, {**SAID, "model": "default"}),
        ):
            asked = ASK.replace("URL", there + path).replace("HEADERS", json.dumps(headers))
            answer, warning = json.loads(page.value(asked.replace("BODY", json.dumps(body))))
            assert "trained on these tools" in warning
            assert answer["success"] if path == "function_call" else answer["choices"]
