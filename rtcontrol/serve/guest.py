"""What the server's page and its totals see of whoever plays here, by whatever protocol."""

from __future__ import annotations

from typing import Protocol

from rtcontrol.loop.loop import ControlLoop


class Guest(Protocol):
    """Whose loop people may look at, and say something to: a session, or what another protocol has for one."""

    loop: ControlLoop | None
    counting: bool

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def shown_name(self) -> str:
        """Of the program on the other side."""

    def say(self, said: str, by: str, k: int | None = None, instruction: str | None = None) -> str: ...

    def instruct(self, text: str) -> None: ...
