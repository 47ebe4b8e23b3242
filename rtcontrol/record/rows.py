"""A record as rows: what was seen, what was asked, what was done. Design, section 9: the one format of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row of each tick whose call acted in time (`call` is null where it stays in force); others teach nothing."""
    tools: list[dict[str, Any]] = []
    source = ""
    seen: dict[int, Mapping[str, Any]] = {}  # by ticks that are not over
    called: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if "observation" in event:
            seen[event["k"]] = event
        elif "called" in event and event["why"] == "fresh":
            called[event["k"]] = event
        elif "kind" in event:
            look, call = seen.pop(event["k"], None), called.pop(event["k"], None)
            on_time = "cause" not in event and event["kind"] in ("call", "null")
            if look is not None and on_time and (call is not None) == (event["kind"] == "call"):
                yield {
                    **{name: look[name] for name in ("instruction", "observation")},
                    "tools": tools,
                    "history": list(look["history"]),
                    "call": None if call is None else {"name": call["called"], "arguments": call["arguments"]},
                    "source": source,
                    "weight": 1.0,
                }
        elif "header" in event:
            tools, source = event["header"].get("tools", []), f"record:{event['header'].get('model')}"
