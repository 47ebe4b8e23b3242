"""A record as rows: what was seen, what was asked, what was done. Design, section 9: the one format of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rtcontrol.agents import InvalidCall, Tools
from rtcontrol.models.call import Call

# A client's word of a call comes this many ticks later at the most, or is not waited for; so does an answer.
WAITED = 512


def rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row of each tick whose call acted in time (`call` is null where it stays in force), and was carried out, where
    a client has a word in that; others teach nothing. Where a tick takes several calls, each has a row, with those
    before it in its history. Where what decided a tick answers an older observation, that one is the row's. In the
    order in which ticks ended."""
    tools: list[dict[str, Any]] = []
    source, shown = "", 0
    seen: dict[int, Mapping[str, Any]] = {}  # by recent ticks
    called: dict[int, Mapping[str, Any]] = {}
    made: dict[tuple[int, int], dict[str, Any]] = {}  # of the last ticks, by tick and number of the call in it
    last: tuple[int, dict[str, Any]] = (-1, {})  # the tick that may have further calls, and its last row
    for event in events:
        if "observation" in event:
            _keep(seen, event)
        elif "called" in event and event["why"] in ("fresh", "further"):
            called[event["k"]] = event
        elif "ack" in event and event["status"] != "executed" and event.get("why") != "safe":
            made.pop((event["ack"], event.get("n", 0)), None)
        elif "kind" in event or "further" in event:
            k, n = event["further" if "further" in event else "k"], event.get("n", 0)
            look = (last[1] if last[0] == k else None) if n else seen.get(event.get("answers", k))
            call = called.pop(k, None)
            kind = "call" if event.get("outcome") == "acted" else event.get("kind", event.get("outcome"))
            on_time = "cause" not in event and "over" not in event and kind in ("call", "null")
            if look is not None and on_time and (call is not None) == (kind == "call"):
                before = [Call.from_dict(look["call"]).text()] if n else []
                history = [*look["history"], *before][-shown or None :] if n else list(look["history"])
                done = None if call is None else {"name": call["called"], "arguments": call["arguments"]}
                row = _row(look, tools, history, done, source)
                made[k, n], last = row, (k, row)
                if len(made) > WAITED:
                    yield made.pop(next(iter(made)))
        elif "header" in event:
            header = event["header"]
            tools, shown, source = header.get("tools", []), header.get("history", 0), f"record:{header.get('model')}"
    yield from made.values()


def teacher_rows(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row of each answer of a run's first decider, late or not, with what it answers. One that was unsure, or that
    the tools do not allow, teaches nothing; nor do further calls of a tick, whose history the record does not keep."""
    header: Mapping[str, Any] = {}
    legal: Tools | None = None
    seen: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if "observation" in event:
            _keep(seen, event)
        elif "first" in event and event["outcome"] in ("in_time", "late") and not event.get("n"):
            look, answer = seen.get(event["first"]), event["answer"]
            if look is not None and legal is not None and _allowed(legal, answer, header):
                yield _row(look, header["tools"], list(look["history"]), answer, f"teacher:{header.get('model')}")
        elif "header" in event:
            header = event["header"]
            legal = Tools(header["tools"]) if header.get("tools") else None


def _allowed(legal: Tools, answer: Mapping[str, Any] | None, header: Mapping[str, Any]) -> bool:
    if answer is None:
        return bool(header.get("allow_null"))
    try:
        legal.validate(Call.from_dict(answer))
    except InvalidCall:
        return False
    return True


def _keep(seen: dict[int, Mapping[str, Any]], event: Mapping[str, Any]) -> None:
    seen[event["k"]] = event
    if len(seen) > WAITED:
        del seen[next(iter(seen))]


def _row(
    look: Mapping[str, Any],
    tools: list[dict[str, Any]],
    history: list[str],
    call: Mapping[str, Any] | None,
    source: str,
) -> dict[str, Any]:
    told = {name: look[name] for name in ("instruction", "observation")}
    return {**told, "tools": tools, "history": history, "call": call, "source": source, "weight": 1.0}
