"""The application's options, and requests to a replica behind Serve's proxies, without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
from rtcontrol.gateway.http_server import ABORT
from rtcontrol.models.errors import UserError
from rtcontrol.scale.application import application, options_of
from rtcontrol.scale.replica import TOKEN, ReplicaApp, at_root, gate_of
from rtcontrol.serve.options import ServeOptions
from tests.helpers.processes import python

SECRET = "a-token-of-the-tests-0123456789"


def test_text_and_yaml_give_the_same_options() -> None:
    text = options_of({
        "model": "lander", "replicas": "2:3", "hz": "12.5", "standby": "false",
        "max-sessions": "5", "keys": "keys",
    })  # fmt: skip
    yaml = options_of({
        "model": "lander", "replicas": "2:3", "hz": 12.5, "standby": False,
        "max_sessions": 5, "keys": "keys", "agent": None,
    })  # fmt: skip
    assert text == yaml
    assert (text.replicas, text.max_sessions, text.keys) == ("2:3", 5, Path("keys"))
    assert options_of({"replicas": 2}).replicas == "2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"modle": "lander"}, "The nearest one is host.model"),
        ({"http": "0.0.0.0:8000"}, "http_options"),
        ({"replicas": 0}, "Give a number such as 2"),
        ({"replicas": "3:2"}, "Give a number such as 2"),
        ({"max_sessions": "two"}, "Input should be a valid integer"),
        ({"max_sessions": True}, "Input should be a valid integer"),
        ({"standby": "perhaps"}, "Input should be a valid boolean"),
        ({"model": ["lander"]}, "model"),
        ({"hz": 1e9}, "less than or equal to 10000"),
        ({"standby": True}, "exclude each other"),
        ({"bind": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]}, "takes one --bind"),
        ({"bind": "tcp://0.0.0.0:5555"}, "there are no keys"),
    ],
)
def test_invalid_option_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        application(options_of(arguments))
    assert words in str(error.value)


def test_token_is_read_at_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = options_of({"allow_origin": ["http://a.example"], "token_file": str(tmp_path / "token")})
    with pytest.raises(UserError, match="is missing at a replica"):
        gate_of(options)
    assert not (tmp_path / "token").exists(), "each replica would make its own"
    monkeypatch.setenv(TOKEN, SECRET)
    gate = gate_of(options_of({"allow_origin": ["http://a.example"]}))
    assert (gate.token, gate.require_token, gate.origins) == (SECRET, True, frozenset({"http://a.example"}))
    assert SECRET not in repr(gate) and SECRET not in repr(options)


def test_proxy_that_hides_the_client_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert not gate_of(ServeOptions()).require_token
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(UserError, match="HAProxy"):
        gate_of(ServeOptions())


# Kludex/starlette#2599: what only starts with the same letters is not a prefix.
@pytest.mark.parametrize(
    ("root", "path", "shown"),
    [
        ("", "/v1/models", "/v1/models"),
        ("/rt", "/rt/v1/models", "/v1/models"),
        ("/rt", "/rt", "/"),
        ("/rt", "/rtx/v1/models", "/rtx/v1/models"),
    ],
)
def test_gate_gets_paths_without_prefix(root: str, path: str, shown: str) -> None:
    scope = at_root({"type": "http", "path": path, "root_path": root})
    assert (scope["path"], scope["root_path"]) == (shown, "")


def test_websocket_ends_when_cut_off_or_cancelled() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["cut"]:
            scope["extensions"][ABORT]()
        else:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        await asyncio.sleep(60)

    async def both() -> None:
        scope: dict[str, Any] = {"type": "websocket", "path": "/ws", "extensions": None}
        replica: Any = ReplicaApp(None, app)  # type: ignore[arg-type]
        await replica({**scope, "cut": True}, None, None)
        with pytest.raises(asyncio.CancelledError):
            await replica({**scope, "cut": False}, None, None)

    asyncio.run(both())


def test_proxies_import_no_gateway_module() -> None:
    code = "import sys, rtcontrol.scale.router; print(*(m in sys.modules for m in ('torch', 'rtcontrol.gateway')))"
    assert python("-c", code).stdout.split() == ["False", "False"]
