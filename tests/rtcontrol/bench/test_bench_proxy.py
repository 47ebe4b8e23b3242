"""`rtcontrol bench proxy`: the same round trips by each address, and what is no address of a server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers.processes import Program, cli, free_port

TOKEN = "a-token-of-the-tests-0123456789"


def test_round_trips_are_measured_by_each_address(tmp_path: Path) -> None:
    token, out, port = tmp_path / "token", tmp_path / "proxy.json", free_port()
    token.touch(0o600)
    token.write_text(TOKEN)
    given = [
        "--model",
        "noop",
        "--host",
        "inprocess",
        "--bind",
        f"ipc://{tmp_path}/wire",
        "--out",
        str(tmp_path / "out"),
    ]
    gate = ["--http", f"127.0.0.1:{port}", "--token-file", str(token), "--require-token"]
    server = Program(["-m", "rtcontrol", "serve", *given, *gate], tmp_path / "log")
    urls = [f"http://127.0.0.1:{port}", f"http://localhost:{port}/"]
    try:
        server.says(f"listening on http://127.0.0.1:{port}/")
        refused = cli("bench", "proxy", *urls, "--trips", "100")
        assert refused.returncode == 2 and "401" in refused.stderr and "Traceback" not in refused.stderr
        measured = ("--trips", "130", "--token-file", str(token), "--json", str(out))
        done = cli("bench", "proxy", *urls, *measured)
        assert done.returncode == 0, done.stderr
    finally:
        server.end()
    found = json.loads(out.read_text())
    assert list(found["ms"]) == urls and found["trips"] == 120
    for of in found["ms"].values():
        assert all(0 < of[trip]["p50"] <= of[trip]["p99"] for trip in ("ping", "call"))
    assert TOKEN not in done.stdout + refused.stderr + out.read_text()


def test_what_is_no_page_is_told(tmp_path: Path) -> None:
    for url, words in (("127.0.0.1:8080", "no address of a page"), (f"http://127.0.0.1:{free_port()}", "no session")):
        done = cli("bench", "proxy", url)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done.stderr
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    wrong = {"http://:8080": "no address", "http://h:abc": "no address", "http://h:99999": "no address"}
    for url, words in {**wrong, "http://192.0.2.1:8080": "in the clear"}.items():
        done = cli("bench", "proxy", url, "--token-file", str(token))
        told = done.stdout + done.stderr
        assert done.returncode == 2 and words in told and "Traceback" not in told and TOKEN not in told, told
    done = cli("bench", "proxy", "http://127.0.0.1:1", "--token-file", str(tmp_path / "none"))
    assert done.returncode == 2 and "is not there" in done.stderr and not (tmp_path / "none").exists()
