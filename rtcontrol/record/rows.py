"""A record as rows: what was seen, what was asked, what was done. Design, section 9: the one format of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

# A client's word of a call comes this many ticks later at the most, or is not waited for.
WAITED = 512


def rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row of each tick whose call acted in time (`call` is null where it stays in force), and was carried out, where
    a client has a word in that; others teach nothing. In the order in which ticks ended."""
    tools: list[dict[str, Any]] = []
    source = ""
    seen: dict[int, Mapping[str, Any]] = {}  # by ticks that are not over
    called: dict[int, Mapping[str, Any]] = {}
    made: dict[int, dict[str, Any]] = {}  # of the last ticks
    for event in events:
        if "observation" in event:
            seen[event["k"]] = event
        elif "called" in event and event["why"] == "fresh":
            called[event["k"]] = event
        elif "ack" in event and event["status"] != "executed" and event.get("why") != "safe":
            made.pop(event["ack"], None)
        elif "kind" in event:
            look, call = seen.pop(event["k"], None), called.pop(event["k"], None)
            on_time = "cause" not in event and event["kind"] in ("call", "null")
            if look is not None and on_time and (call is not None) == (event["kind"] == "call"):
                made[event["k"]] = {
                    **{name: look[name] for name in ("instruction", "observation")},
                    "tools": tools,
                    "history": list(look["history"]),
                    "call": None if call is None else {"name": call["called"], "arguments": call["arguments"]},
                    "source": source,
                    "weight": 1.0,
                }
                if len(made) > WAITED:
                    yield made.pop(next(iter(made)))
        elif "header" in event:
            tools, source = event["header"].get("tools", []), f"record:{event['header'].get('model')}"
    yield from made.values()
