"""Which calls may act, and the arguments as their functions take them."""

from __future__ import annotations

from enum import Enum

from rtcontrol.agents import Tools
from rtcontrol.models.call import Call

# So many different calls are known to be legal; a schema of free values has no end of them.
MAX_KNOWN = 1024
# Of these nobody changes a value.
PLAIN = (int, float, str, Enum, type(None))


class LegalCalls:
    """The calls that were found legal, by name and arguments as text: (ready to act, text)."""

    def __init__(self, tools: Tools) -> None:
        self.known: dict[str, tuple[Call, str]] = {}
        self._tools = tools

    def check(self, call: Call) -> tuple[Call, str]:
        """Return a legal call with its arguments as the annotated types, and its text. Raises InvalidCall. What was
        legal once is known from then on, if its arguments are values that nobody can change."""
        key = f"{call.name}{call.arguments}"
        if (known := self.known.get(key)) is not None:
            return known
        tools = self._tools
        ready = Call(call.name, tools.convert(tools.validate(call)))
        checked = ready, call.text()
        if len(self.known) < MAX_KNOWN and all(isinstance(v, PLAIN) for v in ready.arguments.values()):
            self.known[key] = checked
        return checked
