"""A session of the server as those see it who look on (`view.Watched`)."""

from __future__ import annotations

from typing import Any

from rtcontrol.run.viewer import snapshot
from rtcontrol.serve.admission import Admission
from rtcontrol.serve.session import Session


class WatchedSession:
    """`snapshot` follows the session from loop to loop, as its client goes and comes back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def snapshot(self, since: int) -> dict[str, Any]:
        session = self._session
        assert session.loop is not None, "found sessions have run"
        return snapshot(session.loop, since) | {"over": session.state == "over", "env": session.hello.client.name}

    def picture(self) -> None:
        """The world is the client's."""

    def say(self, said: str, k: int | None) -> str:
        return self._session.say(said, "page", k)

    def instruct(self, text: str) -> None:
        self._session.instruct(text)


def find(admission: Admission, name: str) -> WatchedSession | None:
    """The session of this name, once it runs."""
    found = next((s for s in admission.all() if s.id == name and s.loop is not None), None)
    return None if found is None else WatchedSession(found)


def listed(admission: Admission) -> list[dict[str, Any]]:
    """Those there are to look at."""
    return [
        {"id": s.id, "state": s.state, "client": s.hello.client.name} for s in admission.all() if s.loop is not None
    ]
