"""Pictures of a client's world: received next to the session, shown and recorded."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcap.reader import make_reader

from rtcontrol.gateway.view import WatchedSession
from rtcontrol_client.wire.messages import CallMessage, Picture, PictureFile, Ping, Pong
from tests.bridges.wire.test_picture_files import jpeg
from tests.helpers.processes import until
from tests.rtcontrol.serve.wire_peer import WirePeer

CAPABLE = {"capabilities": ["pictures"]}


def picture(token: str, data: bytes, form: Any = "jpeg", t_ns: int | None = None) -> Picture:
    taken_ns = time.monotonic_ns() if t_ns is None else t_ns
    return Picture(session=token, t_ns=taken_ns, image=PictureFile(format=form, data=data))


def received(peer: WirePeer) -> None:
    """Wait until the server has processed all sent messages."""
    peer.send(Ping(id=1, t_ns=1))
    peer.expect(Pong)


def counts(bench: Any) -> dict[str, int]:
    (session,) = bench.sessions.threads()
    return dict(session.env.traffic.pictures)


def recorded(out: Path) -> list[tuple[float, bytes, str]]:
    """Return seconds, bytes and format of each picture of a record."""
    with out.open("rb") as file:
        matches = [*make_reader(file).iter_messages(topics=["/picture"])]
    assert all(schema.name == "foxglove.CompressedImage" for schema, _, _ in matches if schema is not None)
    result = [json.loads(message.data) for _, _, message in matches]
    stamps = [item["timestamp"]["sec"] + item["timestamp"]["nsec"] / 1e9 for item in result]
    return [(s, base64.b64decode(item["data"]), item["format"]) for s, item in zip(stamps, result, strict=True)]


def test_picture_is_shown_until_its_client_is_gone(running: Any) -> None:
    peer, beside = running.enter(**CAPABLE), running.peer()
    assert "pictures" in peer.welcome.capabilities
    beside.send(picture(peer.token, jpeg(1)))
    received(beside)
    (session,) = running.sessions.threads()
    assert WatchedSession(session).picture() == jpeg(1) and counts(running) == {"taken": 1}
    peer.send(picture(peer.token, jpeg(2)))  # or on the session's own
    received(peer)
    assert WatchedSession(session).picture() == jpeg(2)
    assert WatchedSession(session).snapshot(0)["picture_age_s"] < 60
    beside.close()
    received(peer)
    assert session.session.life.state == "live"
    peer.close()
    until(lambda: session.session.life.state == "parked", "it was not parked")
    assert WatchedSession(session).picture() is None and WatchedSession(session).snapshot(0)["picture_age_s"] is None


def test_picture_is_recorded_once_at_its_time(
    bench: Callable[..., Any],
) -> None:
    running = bench(record_pictures=50.0)
    peer = running.enter(hz=50, **CAPABLE)
    beside = running.peer()
    began_s = time.time()
    ahead_ns = 10**12  # the client's clock is another one
    sent = [jpeg(10), jpeg(200)]
    for data in sent:
        t_ns = time.monotonic_ns() + ahead_ns
        peer.observe(t_ns=t_ns)
        peer.expect(CallMessage)
        beside.send(picture(peer.token, data, t_ns=t_ns - 20_000_000))
        received(beside)
        for _ in range(12):
            peer.observe(t_ns=time.monotonic_ns() + ahead_ns)
            peer.expect(CallMessage)
    peer.close()
    until(lambda: running.sessions.threads()[0].session.life.state == "parked", "it was not parked")
    matches = recorded(running.out / "session-0001" / "record.mcap")
    assert [(data, form) for _, data, form in matches] == [(data, "jpeg") for data in sent]  # foxglove/mcap#1701
    assert began_s - 1 < matches[0][0] < matches[1][0] < time.time()
