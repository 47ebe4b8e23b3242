"""Reads records: MCAP files, also ones that were cut off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mcap.writer import MCAP0_MAGIC

from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.channels import CHANNELS, SCHEMA_VERSION, schema_name
from rtcontrol.telemetry.messages import Damaged, Messages
from rtcontrol.telemetry.run_folder import older_parts, record_of

# When it was written (UTC in ns), and the event.
Stamped = tuple[int, dict[str, Any]]


def record_in(folder: Path) -> Path:
    """The record in a run's folder, or `folder` where it is a file. UserError where there is none."""
    if folder.is_file():
        return folder
    if (record := record_of(folder)) is not None:
        return record
    if sessions := sorted(folder.glob("session-*")):
        raise UserError(f"{folder} is a server's.", f"Give the folder of a session, such as {sessions[-1]}.")
    raise UserError(f"No record at {folder}.", "Give a run's folder, or a record.mcap.")


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """The record's events in order, all parts that are left, each from its header on; what was cut short at its end is
    left out. UserError where there is none, where it is damaged in its midst, of a later version, or not ours."""
    return (event for _, event in read_stamped(path))


def read_stamped(path: Path) -> Iterator[Stamped]:
    """Yield as `read_record`, each event with when it was written: UTC in ns."""
    parts = [*older_parts(path), path]
    for part in parts:
        try:
            if len(parts) > 1 and part.stat().st_size <= len(MCAP0_MAGIC):
                continue  # the newest, whose beginning a full disk did not take
            with part.open("rb") as file:
                yield from _messages(file, part)
        except FileNotFoundError as error:
            if len(parts) == 1:
                raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's folder.") from error
            # The oldest part of a live run was removed meanwhile, or the newest not yet begun.
        except OSError as error:
            raise UserError(f"No record at {path} ({error.strerror}).", "Give a run's folder.") from error


def _messages(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events. What other programs added, on topics or of schemas that are not ours, is passed over."""
    header: Any = None
    began_ns = 0
    try:
        for channel, schema, message in Messages(file):
            if channel.topic not in CHANNELS or schema not in (None, schema_name(channel.topic)):
                continue
            if channel.message_encoding != "json":
                raise Damaged(f"{channel.topic} is encoded as {channel.message_encoding[:40]!r}, no JSON")
            if not isinstance(event := json.loads(message.data), dict):
                raise Damaged(f"a message of {channel.topic} is no object")
            if (version := event.get("schema_version", SCHEMA_VERSION)) > SCHEMA_VERSION:
                raise Damaged(f"it has the format {version}, and this rtcontrol reads those up to {SCHEMA_VERSION}")
            if "header" in event:
                if header not in (None, event["header"]):
                    raise Damaged("it holds several runs: give each as it was written")
                if header is not None and message.log_time == began_ns:  # of a later part it is another time
                    raise Damaged("it holds one run twice: give it as it was written")
                header, began_ns = event["header"], message.log_time
            yield message.log_time, event
    except OSError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is no record of a run ({why}).", "Give a run's folder, or its record.mcap.") from error


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
            seen[event["k"]] = event
            if len(seen) > WAITED:
                del seen[next(iter(seen))]
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
                row = {name: look[name] for name in ("instruction", "observation")}
                row |= {"tools": tools, "history": history, "call": done, "source": source, "weight": 1.0}
                made[k, n] = row
                last = k, row
                if len(made) > WAITED:
                    yield made.pop(next(iter(made)))
        elif "header" in event:
            header = event["header"]
            tools, shown, source = header.get("tools", []), header.get("history", 0), f"record:{header.get('model')}"
    yield from made.values()
