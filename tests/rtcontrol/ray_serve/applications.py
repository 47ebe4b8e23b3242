"""The applications of the tests, and their clients."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from rtcontrol_client.wire import decode_json, encode_json
from rtcontrol_client.wire.messages import Bye, CallMessage, Hello, Message, Observe, Ping, Pong, Program, Welcome
from tests.helpers.processes import ROOT, free_port
from tests.helpers.ray_cluster import RayCluster

M = TypeVar("M", bound=Message)
TOKEN_ENV, TOKEN = "RTCONTROL_TOKEN", "a-token-of-the-tests-0123456789"
MANIFEST: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "deploy" / "rayservice.yaml").read_text("utf-8"))
APPLICATIONS = "/api/serve/applications/"
STATE = "x 0 y 100 vx 0 vy 0 angle 0 spin 0 legs 0 0"
AT_ONCE, WAITING = 4, 2


class Applications:
    """`open` is the manifest's, without a token; `guarded` has one, a prefix and no decoders, and takes `AT_ONCE`
    requests, beside `WAITING`; `wrong` has an argument that is none. `env` is for a program of the cluster."""

    def __init__(self, cluster: RayCluster, key: str, out: Path) -> None:
        self.port, self.out = free_port(), out
        self.env = {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": key}
        self.url = f"http://127.0.0.1:{self.port}"
        self._dashboard = httpx.Client(base_url=cluster.dashboard, headers={"authorization": f"Bearer {key}"})
        config: dict[str, Any] = yaml.safe_load(MANIFEST["spec"]["serveConfigV2"])
        config |= {"proxy_location": "HeadOnly", "http_options": {"host": "127.0.0.1", "port": self.port}}
        (made,) = config["applications"]
        noop = {**made, "args": {"model": "noop", "token_env": TOKEN_ENV}}
        guarded = {**noop, "name": "guarded", "route_prefix": "/guarded"}
        bounds = {"max_ongoing_requests": AT_ONCE, "max_queued_requests": WAITING}
        guarded["deployments"] = [{"name": "Door", **bounds}]
        wrong = {**noop, "name": "wrong", "route_prefix": "/wrong", "args": {"modle": "lander"}}
        made |= {"name": "open"}
        made["args"] |= {"decoders": 1, "out": str(out), "token_env": None, "allow_origin": None}
        self.config = {**config, "applications": [made, guarded, wrong]}
        self.tell(self.config)

    def tell(self, config: dict[str, Any]) -> None:
        """As `serve deploy` does."""
        answer = self._dashboard.put(APPLICATIONS, json=config, timeout=60.0)
        assert answer.status_code == 200, answer.text

    def status(self, name: str) -> dict[str, Any]:
        """What Serve says of it."""
        found: dict[str, Any] = self._dashboard.get(APPLICATIONS, timeout=60.0).json()
        return dict(found["applications"].get(name, {"status": "GONE", "message": "", "deployments": {}}))

    def replicas(self, name: str = "open") -> dict[str, int]:
        """The pids of those that run, by their names."""
        there = self.status(name)["deployments"]["Door"]["replicas"]
        return {one["replica_id"]: one["pid"] for one in there if one["state"] == "RUNNING"}

    def message(self, name: str) -> str:
        """All that Serve says of it, and of its replicas."""
        shown = self.status(name)
        return " ".join([shown["message"], *(one["message"] for one in shown["deployments"].values())])

    def are_up(self, *names: str) -> bool:
        shown = {name: self.status(name) for name in names}
        broken = {name: one for name, one in shown.items() if one["status"] == "DEPLOY_FAILED"}
        assert not broken, "\n".join(f"{name}: {one['message']} {one['deployments']}" for name, one in broken.items())
        return all(one["status"] == "RUNNING" for one in shown.values())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=60.0, **options)

    def homes(self) -> list[str]:
        """Of `open`, the replicas at which sessions were, by the folders of their records; once for each."""
        return sorted(path.parent.name for path in self.out.glob("*/session-*"))

    @contextmanager
    def line(self, path: str = "/ws", **options: Any) -> Iterator[Line]:
        with connect(f"ws://127.0.0.1:{self.port}{path}", compression=None, close_timeout=5, **options) as socket:
            yield Line(socket)


class Line:
    """A client by WebSocket, which reads and writes messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.seq = socket, 0

    def send(self, message: Message) -> None:
        self.socket.send(encode_json(message))

    def hello(self, **options: Any) -> Welcome:
        given = {"agent": "lander", "hz": 10.0, **options}
        self.send(Hello(protocol=[1, 1], client=Program(name="test"), t_client_ns=time.monotonic_ns(), **given))
        self.welcome = self.until(Welcome)
        return self.welcome

    def until(self, kind: type[M], timeout_s: float = 60.0) -> M:
        """The next message of the kind; pings are answered meanwhile."""
        give_up = time.monotonic() + timeout_s
        while not isinstance(message := decode_json(self.socket.recv(timeout=give_up - time.monotonic())), kind):
            if isinstance(message, Ping):
                now = time.monotonic_ns()
                self.send(Pong(id=message.id, t_ping_ns=message.t_ns, t_received_ns=now, t_sent_ns=now))
            assert message.type != "error", message
        return message

    def until_fresh(self) -> CallMessage:
        """Observe until one of the calls was decided by the model."""
        while True:
            self.seq += 1
            token, epoch = self.welcome.session, self.welcome.epoch
            self.send(Observe(session=token, seq=self.seq, epoch=epoch, t_ns=time.monotonic_ns(), text=STATE))
            if (call := self.until(CallMessage)).status == "fresh":
                return call

    def bye(self) -> None:
        """End the session."""
        self.send(Bye(session=self.welcome.session))
        self.until(Bye)

    def is_cut(self, timeout_s: float = 0.0) -> bool:
        """Whether the connection is over; what still comes is read."""
        try:
            while True:
                self.socket.recv(timeout=timeout_s)
        except ConnectionClosed:
            return True
        except TimeoutError:
            return False
