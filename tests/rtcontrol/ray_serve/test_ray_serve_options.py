"""What the application is told, as text and as YAML has it, and how it comes behind Serve's proxies; without Ray."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from rtcontrol.models.errors import UserError
from rtcontrol.ray_serve.door import ABORT, BehindServe
from rtcontrol.ray_serve.options import FLEET, DoorOptions
from tests.helpers.processes import ROOT, python

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")  # it is named, and not asked


def refused(**arguments: Any) -> UserError:
    with pytest.raises(UserError) as error:
        DoorOptions.parse(arguments)
    return error.value


def test_text_and_yaml_say_the_same() -> None:
    text = DoorOptions.parse({
        "model": "lander", "fleet": "lab", "decoders": "2", "doors": "3", "threads": "1", "hz": "12.5",
        "confirm-instruction": "false", "session-grace": "5", "allow_origin": "http://a.example,http://b.example:81",
        "token_env": "T",
    })  # fmt: skip
    yaml = DoorOptions.parse({
        "model": "lander", "fleet": "lab", "decoders": 2, "doors": 3, "threads": 1, "hz": 12.5,
        "confirm_instruction": False, "session_grace": 5, "allow_origin": ["http://a.example", "http://b.example:81"],
        "token_env": "T", "agent": None,
    })  # fmt: skip
    assert (text.served, text.doors, text.origins) == (yaml.served, yaml.doors, yaml.origins)
    assert text.served.decoders == "2" and text.served.session_grace_s == 5.0 and text.served.fleet == "lab"
    assert text.origins == {"http://a.example", "http://b.example:81"}


def test_the_pages_command_has_arguments_that_there_are() -> None:
    pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
    from ray.serve.scripts import convert_args_to_dict

    page = (ROOT / "docs" / "scaling.md").read_text("utf-8")
    (words,) = re.findall(r"^    serve run rtcontrol\.ray_serve:build (.*)$", page, re.MULTILINE)
    options = DoorOptions.parse(convert_args_to_dict(words.split()))
    assert (options.served.fleet, options.served.decoders, options.doors) == ("lab", "2", 2)


def test_decoders_are_shared_also_where_no_fleet_is_named_and_where_there_are_none_it_has_none() -> None:
    assert DoorOptions.parse({}).served.fleet == FLEET
    assert DoorOptions.parse({"model": "noop"}).served.fleet is None
    assert "needs no decoders" in refused(model="noop", fleet="lab").what
    assert DoorOptions.parse({"model": "lander"}).served.loads == "lander", "it is loaded by the first session"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"modle": "lander"}, "The nearest one is model"),
        ({"http": "0.0.0.0:8000"}, "http_options"),
        ({"bind": "tcp://0.0.0.0:5555"}, "rtcontrol serve --fleet"),
        ({"token": TOKEN}, "token_env"),
        ({"host": "inprocess"}, "leave it out"),
        ({"doors": 0}, "Give 1 to"),
        ({"doors": "two"}, "It needs a whole number"),
        ({"doors": 1.5}, "It needs a whole number"),
        ({"threads": True}, "It needs a whole number"),
        ({"confirm_instruction": "perhaps"}, "It needs true or false"),
        ({"model": ["lander"]}, "It needs text"),
        ({"fleet": "two words"}, "Give up to 64 letters"),
        ({"hz": 1e9}, "Give 0.001 to"),
        ({"allow_origin": "example.com", "token_env": "T"}, "There is no wildcard"),
        ({"allow_origin": "http://a.example"}, "Give one with `token_env`"),
        ({"token_env": "T", "token_file": "t"}, "Give one of them"),
    ],
)
def test_what_cannot_be_served_is_told_with_what_to_do(arguments: dict[str, Any], words: str) -> None:
    error = refused(**arguments)
    assert words in str(error) and TOKEN not in str(error)


def test_a_token_is_read_at_the_replica_and_everybody_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = DoorOptions.parse({"token_env": "RTCONTROL_TEST_TOKEN"})
    with pytest.raises(UserError, match="no such environment variable"):
        named.gate()
    monkeypatch.setenv("RTCONTROL_TEST_TOKEN", TOKEN)
    gate = named.gate()
    assert gate.token == TOKEN and gate.require_token and TOKEN not in repr(named) and TOKEN not in repr(gate)
    kept = DoorOptions.parse({"token_file": str(tmp_path / "token")})
    with pytest.raises(UserError, match="is not there"):  # each replica would make one of its own
        kept.gate()
    assert not (tmp_path / "token").exists()
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text(TOKEN)
    assert kept.gate() == gate


def test_a_proxy_that_does_not_say_who_asks_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a replica everybody behind Serve's HAProxy is a program of that machine."""
    assert not DoorOptions.parse({}).gate().require_token
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(UserError, match="HAProxy"):
        DoorOptions.parse({}).gate()
    monkeypatch.setenv("RTCONTROL_TEST_TOKEN", TOKEN)
    assert DoorOptions.parse({"token_env": "RTCONTROL_TEST_TOKEN"}).gate().require_token


@pytest.mark.parametrize(
    ("root", "path", "seen"),
    [
        ("", "/v1/models", "/v1/models"),
        ("/rt", "/rt/v1/models", "/v1/models"),
        ("/rt", "/rt", "/"),
        ("/rt", "/rt/", "/"),
        # Kludex/starlette#2599: what only begins with the same letters is no prefix.
        ("/rt", "/rtx/v1/models", "/rtx/v1/models"),
    ],
)
def test_the_gate_sees_the_paths_that_the_routes_have(root: str, path: str, seen: str) -> None:
    scopes: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)

    given = {"type": "http", "path": path, "root_path": root}
    asyncio.run(BehindServe(app)(given, None, None))  # type: ignore[arg-type]
    assert (scopes[0]["path"], scopes[0]["root_path"]) == (seen, "") and given["path"] == path


def test_a_websocket_that_is_cut_off_ends_and_one_that_serve_cancels_is_cancelled() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["cut"]:
            scope["extensions"][ABORT]()
        else:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(60)

    async def both() -> None:
        told: dict[str, Any] = {"type": "websocket", "path": "/ws", "extensions": None}
        await BehindServe(app)({**told, "cut": True}, None, None)  # type: ignore[arg-type]
        with pytest.raises(asyncio.CancelledError):
            await BehindServe(app)({**told, "cut": False}, None, None)  # type: ignore[arg-type]

    asyncio.run(both())


def test_where_ray_serve_is_not_installed_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "import rtcontrol.ray_serve\n"
        "try: rtcontrol.ray_serve.build({})\n"
        "except rtcontrol.UserError as error: print(error)\n"
    )
    done = python("-c", code)
    assert "pip install 'rtcontrol[ray-serve]'" in done.stdout, done.stderr


def test_serves_proxies_load_nothing_of_the_gateway() -> None:
    done = python("-c", "import sys, rtcontrol.ray_serve; print('starlette' in sys.modules, 'torch' in sys.modules)")
    assert done.stdout.split() == ["False", "False"], done.stderr
