"""The application's options, requests to a replica, and the router's choice among replicas, without Ray."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the ray-serve extra is not installed")
from ray.serve._private.common import DeploymentID, ReplicaID, StreamingHTTPRequest

from rtcontrol.gateway.http_server import ABORT
from rtcontrol.models.errors import UserError
from rtcontrol.scale import router as module
from rtcontrol.scale.application import TARGET, build_application, parse_options, replicas_for
from rtcontrol.scale.replica import TOKEN, ReplicaApp, gateway_options, without_route_prefix
from rtcontrol.scale.router import LIGHT, STALE_S, ReplicaRouter
from rtcontrol.serve.options import ServeOptions
from tests.helpers.processes import python

SECRET = "a-token-of-the-tests-0123456789"


def test_text_and_yaml_give_the_same_options() -> None:
    text = parse_options({
        "model": "lander", "replicas": "2:3", "hz": "12.5", "standby": "false",
        "max-sessions": "5", "keys": "keys",
    })  # fmt: skip
    yaml = parse_options({
        "model": "lander", "replicas": "2:3", "hz": 12.5, "standby": False,
        "max_sessions": 5, "keys": "keys", "agent": None,
    })  # fmt: skip
    assert text == yaml
    assert (text.replicas, text.max_sessions, text.keys) == ("2:3", 5, Path("keys"))
    assert parse_options({"replicas": 2}).replicas == "2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"modle": "lander"}, "The most similar is host.model"),
        ({"http": "0.0.0.0:8000"}, "http_options"),
        ({"replicas": 0}, "Give a number such as 2"),
        ({"replicas": "3:2"}, "Give a number such as 2"),
        ({"max_sessions": "two"}, "Input should be a valid integer"),
        ({"max_sessions": True}, "Input should be a valid integer"),
        ({"standby": "perhaps"}, "Input should be a valid boolean"),
        ({"model": ["lander"]}, "model"),
        ({"hz": 1e9}, "less than or equal to 10000"),
        ({"standby": True}, "exclude each other"),
        ({"bind": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]}, "only one --bind"),
        ({"bind": "tcp://0.0.0.0:5555"}, "--keys is missing"),
    ],
)
def test_invalid_option_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        build_application(parse_options(arguments))
    assert words in str(error.value)


def test_token_is_read_at_the_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = parse_options({"allow_origin": ["http://a.example"], "token_file": str(tmp_path / "token")})
    with pytest.raises(UserError, match="is missing on a replica"):
        gateway_options(options)
    assert not (tmp_path / "token").exists(), "each replica would make its own"
    monkeypatch.setenv(TOKEN, SECRET)
    gate = gateway_options(parse_options({"allow_origin": ["http://a.example"]}))
    assert (gate.token, gate.require_token, gate.origins) == (SECRET, True, frozenset({"http://a.example"}))
    assert SECRET not in repr(gate) and SECRET not in repr(options)


def test_proxy_that_hides_the_client_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert not gateway_options(ServeOptions()).require_token
    monkeypatch.setenv("RAY_SERVE_ENABLE_HA_PROXY", "1")
    with pytest.raises(UserError, match="HAProxy"):
        gateway_options(ServeOptions())


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
    scope = without_route_prefix({"type": "http", "path": path, "root_path": root})
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


SERVER = DeploymentID(name="Server", app_name="rtcontrol")


def replica(number: int, busy: float = 0.0, full: bool = False) -> Any:
    figures = {"address": f"tcp://10.0.0.{number}:5555", "busy": busy, "full": full, "t_s": 0.0}
    return SimpleNamespace(replica_id=ReplicaID(f"replica-{number}", SERVER), routing_stats=figures)


def router(replicas: list[Any]) -> ReplicaRouter:
    created = ReplicaRouter.__new__(ReplicaRouter)
    created._assigned, created._reports = Counter(), {}
    created._deployment_id, created._num_virtual_nodes, created._num_fallback_replicas = SERVER, 100, len(replicas)
    created._rebuild_ring(frozenset(item.replica_id for item in replicas))
    return created


def request(path: str = "/connect", **headers: str) -> Any:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "path": path, "root_path": "", "headers": named}
    packed = pickle.dumps(StreamingHTTPRequest(asgi_scope=scope, proxy_actor_name="proxy"))
    context = SimpleNamespace(should_backoff=False)
    return SimpleNamespace(args=[packed], metadata=SimpleNamespace(session_id=""), routing_context=context)


def chosen(created: ReplicaRouter, replicas: list[Any], **headers: str) -> str:
    ranks = asyncio.run(created.choose_replicas(replicas, request(**headers)))
    # ray-project/ray#62906: of a rank with several replicas Serve takes the one with the fewest requests.
    assert sorted(len(rank) for rank in ranks) == [1] * len(replicas), "each replica is a rank"
    return str(ranks[0][0].replica_id.unique_id)


def test_same_tools_lead_to_one_replica() -> None:
    replicas = [replica(number) for number in range(4)]
    assert len({chosen(router(replicas), replicas, x_tools="aa") for _ in range(8)}) == 1
    assert len({chosen(router(replicas), replicas, x_tools=f"{n:x}" * 8) for n in range(64)}) == 4


def test_tools_keep_replica_when_another_one_ends() -> None:
    replicas = [replica(number) for number in range(5)]
    before = {n: chosen(router(replicas), replicas, x_tools=f"{n:08x}") for n in range(64)}
    rest = replicas[:-1]
    for n, name in before.items():
        if name != "replica-4":
            assert chosen(router(rest), rest, x_tools=f"{n:08x}") == name


def test_busy_replica_passes_its_tools_on() -> None:
    replicas = [replica(number) for number in range(3)]
    home = chosen(router(replicas), replicas, x_tools="aa")
    for item in replicas:
        item.routing_stats["busy"] = 0.7 if item.replica_id.unique_id == home else 0.1
    assert chosen(router(replicas), replicas, x_tools="aa") != home
    for item in replicas:
        item.routing_stats["busy"] = 0.7
    assert chosen(router(replicas), replicas, x_tools="aa") == home, "all are as busy"


def test_request_without_tools_goes_to_the_least_loaded() -> None:
    replicas = [replica(0, 0.3), replica(1, 0.1), replica(2, 0.2)]
    assert chosen(router(replicas), replicas) == "replica-1"


def test_sessions_assigned_since_last_figures_count() -> None:
    replicas = [replica(0), replica(1)]
    created = router(replicas)
    assert Counter(chosen(created, replicas) for _ in range(8)) == {"replica-0": 4, "replica-1": 4}
    alike = Counter(chosen(router(replicas), replicas, x_tools="aa") for _ in range(8))
    created = router(replicas)
    assert len(alike) == 1
    many = Counter(chosen(created, replicas, x_tools="aa") for _ in range(round(2.5 * LIGHT / module.SESSION)))
    assert len(many) == 2, "one replica got them all"


@pytest.mark.parametrize("headers", [{}, {"x_tools": "aa"}])
def test_full_lost_or_frozen_replica_is_the_last(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = [replica(0), replica(1)]
    home = chosen(router(replicas), replicas, **headers)
    other = next(item for item in replicas if item.replica_id.unique_id != home)
    first = next(item for item in replicas if item is not other)
    other.routing_stats["busy"] = 0.3
    lost = first.routing_stats["address"]
    assert chosen(router(replicas), replicas, x_lost=lost, **headers) == other.replica_id.unique_id
    first.routing_stats["full"] = True
    assert chosen(router(replicas), replicas, **headers) == other.replica_id.unique_id
    first.routing_stats["full"] = False
    created, now_s = router(replicas), 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s)
    assert chosen(created, replicas, **headers) == home
    now_s += STALE_S + 0.1
    other.routing_stats["t_s"] = 1.0
    assert chosen(created, replicas, **headers) == other.replica_id.unique_id


@pytest.mark.parametrize("args", [[], [b"no pickle"], ["text"]])
def test_request_of_another_kind_is_routed_by_load(args: list[Any]) -> None:
    replicas = [replica(0, 0.3), replica(1, 0.1)]
    requested = request()
    requested.args = args
    assert asyncio.run(router(replicas).choose_replicas(replicas, requested))[0] == [replicas[1]]


@pytest.mark.parametrize(("busy", "count"), [([], 1), ([0.0, 0.0], 1), ([0.6], 1), ([0.61], 2), ([0.8, 0.8, 0.8], 4)])
def test_replicas_keep_each_decoder_at_its_target(busy: list[float], count: int) -> None:
    shares = {"busy": dict(enumerate(busy))} if busy else None
    assert replicas_for(SimpleNamespace(aggregated_metrics=shares)) == (count, {})
    assert sum(busy) <= TARGET * count + 1e-9
