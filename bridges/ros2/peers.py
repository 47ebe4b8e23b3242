"""Why nothing is heard from a topic, or nobody hears what is published, in words and with the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from cyclonedds.qos import Policy

from rtcontrol.bridges.ros2.dds import DdsPeer, Input, Output, dds_type

_RANK = {"best_effort": 0, "reliable": 1, "volatile": 0, "transient_local": 1}


def reading(entry: Input, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being heard; `peers` are its publishers."""
    words = ("publishes", "is published as", "its publisher", "offers", "asks for")
    return _problem(entry, entry.writers(), peers, "best_effort", words)


def writing(out: Output, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being told; `peers` are its subscribers."""
    words = ("subscribes to", "is subscribed to as", "a subscriber", "asks for", "offers")
    return _problem(out, out.readers(), peers, "reliable", words)


def _problem(
    end: Input | Output, matched: int, peers: Sequence[DdsPeer], usual: str, words: tuple[str, str, str, str, str]
) -> str | None:
    does, typed, who, they, we = words
    name, qos = end.topic.name, end.topic.qos
    if not peers:
        return f"Nobody {does} {name}. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network."
    if matched >= len(peers):
        return None  # also under another name: DDS compares what a type is made of
    fitting = [peer for peer in peers if peer.type == dds_type(end.topic)]
    if not fitting:
        return _type(name, typed, peers[0], end.topic.type)
    own = (qos.reliability or usual, qos.durability)
    for peer in fitting:
        for key, theirs, ours in zip(("reliability", "durability"), _of(peer), own, strict=True):
            offered, asked = (theirs, ours) if they == "offers" else (ours, theirs)
            if _RANK[offered] < _RANK[asked]:
                return _qos(name, f"{who} {they} {theirs}", f"qos.{key} {we} {ours}")
    count, policy = end.incompatible()
    if count and not matched:
        return _qos(name, f"{who}'s {policy} does not suit us", "no key changes that here")
    return None


def _of(peer: DdsPeer) -> tuple[str, str]:
    best_effort = Policy.Reliability.BestEffort
    reliable = Policy.Reliability in peer.qos and peer.qos[Policy.Reliability] != best_effort
    kept = Policy.Durability in peer.qos and peer.qos[Policy.Durability] != Policy.Durability.Volatile
    return "reliable" if reliable else "best_effort", "transient_local" if kept else "volatile"


def _qos(name: str, theirs: str, ours: str) -> str:
    what = f"QoS of {name} is incompatible: {theirs}, and in our file {ours}."
    return f"{what} No message passes. Correct the key, or the node."


def _type(name: str, verb: str, peer: DdsPeer, ours: str) -> str:
    theirs = peer.type.replace("::dds_::", "::").removesuffix("_").replace("::", "/")
    return f"{name} {verb} {theirs}, and our file says {ours}. No message passes. Correct the type."
