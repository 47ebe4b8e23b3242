"""What a record holds: events by topic, and the JSON Schema of each.

An event is a JSON object; the key that only its kind has tells the kind, and with it the topic. Stamps: `t_s` is
seconds since the first release, `*_ms` milliseconds; a message's log time is UTC, by the one anchor of monotonic to
UTC that the run's header holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of the whole format: a reader refuses a later one.
SCHEMA_VERSION = 3

NUMBER, INTEGER, TEXT, FLAG, OBJECT = ({"type": name} for name in ("number", "integer", "string", "boolean", "object"))
TEXTS = {"type": "array", "items": TEXT}
TIMESTAMP = {"type": "object", "title": "time", "properties": {"sec": INTEGER, "nsec": INTEGER}}
# What viewers know by their own names.
SCHEMAS = {"/picture": "foxglove.CompressedImage"}

TICK = {
    "k": (INTEGER, "Number of the release."),
    "t_s": (NUMBER, "Its release."),
    "member": (TEXT, "Of a crowd: whose tick it is."),
    "rested": (INTEGER, "Of a crowd: releases before it that were left out, as nothing happened to the member."),
    "kind": (TEXT, "call, null, held, overtaken, epoch_over or miss."),
    "cause": (TEXT, "Why it missed; without it, it was on time."),
    "subcause": (TEXT, "What of that cause."),
    "evidence": (OBJECT, "What the cause was told by."),
    "why": (TEXT, "Of a held call: confidence, confirm (it waits for a person's yes), paused or stopped."),
    "action": (TEXT, "What the fallback did: hold, safe, pending, none or stop."),
    "call": (TEXT, "The call that was decided."),
    "decided_by": (TEXT, "Where there is a backup: first or backup."),
    "kept": (OBJECT, "By head: the value that was preferred, where hysteresis kept the one in force."),
    "answers": (INTEGER, "Where the first one's answer, or the plan, is to an older observation: that one's tick."),
    "step": (INTEGER, "Of a plan: which step decided it, from 0."),
    "steps": (INTEGER, "Of a plan: how many it has."),
    "spans_ms": (OBJECT, "When each step was done, from the release on."),
    "wake_ms": (NUMBER, "How late the loop's thread woke."),
    "latency_ms": (NUMBER, "From release to effect."),
    "decide_ms": (NUMBER, "In the decoder."),
    "age_ms": (NUMBER, "Of the observation, at the effect."),
    "execute_ms": (NUMBER, "In the executor."),
    "jitter_ms": (NUMBER, "Of the effect, against one period after the last one."),
    "epoch": (INTEGER, "Of the world: grows with every reset."),
    "seq": (INTEGER, "Of the observation."),
    "superseded": (INTEGER, "Observations that nobody took before it."),
    "skipped": (INTEGER, "Releases before it that were not begun."),
    "skip_cause": (TEXT, "Why."),
    "skip_subcause": (TEXT, "What of that cause."),
    "skip_evidence": (OBJECT, "What the cause was told by."),
    "passes": (INTEGER, "Forward passes of the decision."),
    "tokens": (INTEGER, "Tokens that went through the model."),
    "reused": (INTEGER, "Tokens that were cached."),
    "confidence": (NUMBER, "The least of the heads'."),
    "error": (TEXT, "What was raised."),
    "where": (TEXT, "In which file and line."),
}
# Topic: (what its messages are, the keys that tell an event of it, its fields).
CHANNELS: dict[str, tuple[str, tuple[str, ...], dict[str, tuple[dict[str, Any], str]]]] = {
    "/tick": ("One tick, when it is over.", ("kind",), TICK),
    "/observation": (
        "What a tick was decided by: instruction, text, history and tools make a row.",
        ("observation",),
        {
            "k": (INTEGER, "The tick."),
            "seq": (INTEGER, "Of the observation."),
            "epoch": (INTEGER, "Of the world."),
            "t_s": (NUMBER, "When it was captured."),
            "observation": (TEXT, "As the model saw it."),
            "instruction": (TEXT, "It is decided by."),
            "history": (TEXTS, "The last calls."),
            "in_force": (
                OBJECT,
                "With hysteresis: the call in force, and what was preferred to it, how often in a row.",
            ),
            "data": ({}, "As the world gave it; of a large array, type and shape."),
            "member": TICK["member"],
        },
    ),
    "/picture": (
        "The world, drawn from what is observed, or as its client sent it (foxglove.CompressedImage).",
        ("frame_id",),
        {
            "timestamp": (TIMESTAMP, "When it was observed, or taken, UTC."),
            "frame_id": (TEXT, "world."),
            "data": ({"type": "string", "contentEncoding": "base64"}, "The file."),
            "format": (TEXT, "png or jpeg."),
        },
    ),
    "/further": (
        "What became of a further call of a tick, where it takes several.",
        ("further",),
        {
            "further": (INTEGER, "The tick."),
            "n": (INTEGER, "So many calls of the tick had acted before."),
            "t_s": (NUMBER, "The tick's release."),
            "outcome": (
                TEXT,
                "acted, null, repeated, held, overtaken, epoch_over, cut (not there, or not begun, by the deadline) or "
                "failed.",
            ),
            "over": (FLAG, "It ended after the deadline."),
            "age_ms": TICK["age_ms"],
            **{name: TICK[name] for name in ("call", "why", "cause", "subcause", "action", "spans_ms", "latency_ms")},
            **{name: TICK[name] for name in ("decide_ms", "execute_ms", "passes", "tokens", "reused", "confidence")},
            **{name: TICK[name] for name in ("decided_by", "kept", "error", "where")},
        },
    ),
    "/first": (
        "Where there is a backup: an answer of the first decider, or why there is none, whatever became of it.",
        ("first",),
        {
            "first": (INTEGER, "The tick whose observation it answers."),
            "n": (INTEGER, "Of a further call: how many of the tick came before it."),
            "outcome": (TEXT, "in_time, late (the tick was decided, or missed, without it), unsure, failed or lost."),
            "answer": ({"type": ["object", "null"]}, "The call: name, arguments; null: what is in force stays."),
            "loss": (
                TEXT,
                "Why there is none, of an endpoint: timeout, connection, refused, malformed or http_STATUS.",
            ),
            "answer_ms": (NUMBER, "From the request to the answer."),
            "t_s": (NUMBER, "When it was there."),
            "confidence": TICK["confidence"],
            "error": TICK["error"],
        },
    ),
    "/plan": (
        "A plan of several calls that was made, or why there is none.",
        ("plan",),
        {
            "plan": (INTEGER, "The tick whose observation it answers."),
            "outcome": (TEXT, "in_force, over (all its steps were, when it came; or a newer one was there) or failed."),
            "steps": TICK["steps"],
            "loss": (TEXT, "Why there is none, of an endpoint: timeout, connection, refused, malformed or http."),
            "plan_ms": (NUMBER, "From the request to the plan."),
            "t_s": (NUMBER, "When it was there."),
            "error": TICK["error"],
        },
    ),
    "/call": (
        "A call that acted.",
        ("called",),
        {
            "called": (TEXT, "Name of the function."),
            "arguments": (OBJECT, "Typed."),
            "k": (INTEGER, "The tick that it was decided for."),
            "epoch": TICK["epoch"],
            "why": (TEXT, "fresh, further (not the first of its tick), late or safe."),
            "t_s": (NUMBER, "When it had acted."),
            "member": TICK["member"],
        },
    ),
    "/result": (
        "What a client says became of a call.",
        ("ack",),
        {
            "ack": (INTEGER, "The tick."),
            "status": (TEXT, "executed, expired, refused or failed."),
            "why": (TEXT, "Of which call: fresh or safe."),
            "n": (INTEGER, "Of a further call: how many of the tick came before it."),
            "result": ({}, "What the function gave."),
            "t_s": (NUMBER, "When it was heard."),
            "error": (TEXT, "Why it failed."),
        },
    ),
    "/late": (
        "What came of a tick after its deadline: its decision (late), the end of its call (overran), or a word of the "
        "decoder's that changes why it missed (revised).",
        ("late", "overran", "revised"),
        {
            "late": (INTEGER, "The tick."),
            "overran": (INTEGER, "The tick."),
            "revised": (INTEGER, "The tick."),
            "used": (FLAG, "Whether the late call acted."),
            "waited_ms": (NUMBER, "It was in time, and waited so long for a person's yes."),
            "effect": (TEXT, "acted, epoch_over, too_late, refused or failed."),
            "call": (TEXT, "The call."),
            "t_s": (NUMBER, "When."),
            "cause": (TEXT, "Of the miss, as is known now."),
            "subcause": (TEXT, "What of that cause."),
            "evidence": (OBJECT, "What the cause was told by."),
            **{name: TICK[name] for name in ("latency_ms", "decide_ms", "execute_ms", "spans_ms", "error", "where")},
        },
    ),
    "/safe": (
        "One attempt of a safe call.",
        ("safe",),
        {
            "safe": ({"type": ["string", "null"]}, "The safe call; null: the agent has none."),
            "why": (TEXT, "miss, exit, loop, pause or stop."),
            "t_s": (NUMBER, "When it ended."),
            "attempt": (INTEGER, "From 1."),
            "in_force": (FLAG, "Whether all safe calls are now in force."),
            "member": TICK["member"],
            "world": (TEXT, "over, where its last episode has ended: it took none, or makes no step with it."),
            **{name: TICK[name] for name in ("error", "where")},
        },
    ),
    "/instruction": (
        "The instruction changed.",
        ("instruction",),
        {
            "instruction": (TEXT, "In force from now on."),
            "refused": (TEXT, "The one that the decider cannot take."),
            "t_s": (NUMBER, "When."),
        },
    ),
    "/understood": (
        "What was said was understood as a goal, or was not.",
        ("understood",),
        {
            "said": (TEXT, "As a person said it."),
            "understood": ({"type": ["string", "null"]}, "The canonical instruction; null: it was not understood."),
            "not_understood": (TEXT, "Why: none, unsure, illegal, timeout, overtaken, or how the interpreter failed."),
            "detail": (TEXT, "More of that."),
            "by": (TEXT, "Who was asked; itself: the words are canonical, and nobody was."),
            "sure": (NUMBER, "The probability of the least certain part of the answer."),
            "took_ms": (NUMBER, "How long it took."),
            "t_s": (NUMBER, "When."),
        },
    ),
    "/people": (
        "What people did to the run, or were asked.",
        ("people",),
        {
            "people": (TEXT, "pause, resume, stop, confirm, deny; ask (may this call act?) or unanswered."),
            "by": (TEXT, "keyboard, page or wire."),
            "k": (INTEGER, "The tick whose call is meant; -1, -2 ...: an instruction as it was understood."),
            "call": (TEXT, "That call, or instruction."),
            "seconds": (NUMBER, "So long the call waits for an answer."),
            "void": (FLAG, "The answer came too late, or to another call."),
            "t_s": (NUMBER, "When it was said."),
        },
    ),
    "/episode": ("An episode ended.", ("episode",), {"episode": (OBJECT, "seed, return, success, seconds, detail.")}),
    "/host": (
        "The decoder was lost, or came back.",
        ("host_event",),
        {"host_event": (OBJECT, "t_s, event, seconds, decider.")},
    ),
    "/fault": (
        "The world raised.",
        ("fault",),
        {
            "fault": (TEXT, "What it was doing."),
            "t_s": (NUMBER, "When."),
            "error": TICK["error"],
            "where": TICK["where"],
        },
    ),
    "/log": ("What people were told.", ("log",), {"log": (TEXT, "The line."), "t_s": (NUMBER, "When.")}),
    "/run": (
        "The run: its settings first, then how it started, the first release, and how it ended.",
        ("header", "start", "origin_ns", "end", "account"),
        {
            "header": (OBJECT, "Settings and machine."),
            "schema_version": (INTEGER, "Of this format."),
            "start": (OBJECT, "Decoder and warm-up."),
            "origin_ns": (INTEGER, "The first release, CLOCK_MONOTONIC: all `t_s` count from it."),
            "end": ({"type": ["string", "null"]}, "Why it ended."),
            "t_s": (NUMBER, "When it ended."),
            "open": (INTEGER, "Ticks in flight at the end: no releases."),
            "safe_in_force": ({"type": ["boolean", "null"]}, "Whether the safe call was in force at the end."),
            "account": (OBJECT, "Counts up to here, where older parts of the record are removed."),
        },
    ),
}
# `observation` before `instruction`: an observation has both.
_TOPICS = {key: topic for topic, (_, keys, _) in CHANNELS.items() for key in keys}


def topic_of(event: Mapping[str, Any]) -> str:
    """Where an event belongs. KeyError where its kind is unknown."""
    for key, topic in _TOPICS.items():
        if key in event:
            return topic
    raise KeyError(f"an event of no known kind: {', '.join(event)}")


def schema_name(topic: str) -> str:
    return SCHEMAS.get(topic, f"rtcontrol{topic.replace('/', '.')}")


def schema(topic: str) -> dict[str, Any]:
    """The JSON Schema of a topic's messages."""
    about, _, fields = CHANNELS[topic]
    properties = {name: {**kind, "description": what} for name, (kind, what) in fields.items()}
    return {
        "title": schema_name(topic),
        "description": about,
        "type": "object",
        "properties": properties,
    }
