"""Why nothing is heard from a topic, or nobody hears what is published, in words and with the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from cyclonedds.qos import Policy

from rtcontrol.bridges.ros2.dds import DdsPeer, Input, Output, dds_type

_RELIABILITY = {"reliable": 1, "best_effort": 0}
_DURABILITY = {"volatile": 0, "transient_local": 1}


def reading(entry: Input, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being heard; `peers` are its publishers."""
    name = entry.topic.name
    if not peers:
        return f"Nobody publishes {name}. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network."
    if entry.writers() >= len(peers):
        return None  # also under another name: DDS compares what a type is made of
    fitting = [peer for peer in peers if peer.type == dds_type(entry.topic)]
    if not fitting:
        return _type(name, "is published as", peers[0], entry.topic.type)
    asked = entry.topic.qos.reliability or "best_effort"
    for peer in fitting:
        reliability, durability = _of(peer)
        if _RELIABILITY[reliability] < _RELIABILITY[asked]:
            return _qos(name, f"its publisher offers {reliability}", f"qos.reliability asks for {asked}")
        if _DURABILITY[durability] < _DURABILITY[entry.topic.qos.durability]:
            kept = entry.topic.qos.durability
            return _qos(name, f"its publisher offers {durability}", f"qos.durability asks for {kept}")
    count, policy = entry.incompatible()
    if count and not entry.writers():
        return _qos(name, f"its publisher's {policy} does not suit us", "no key changes that here")
    return None


def writing(out: Output, peers: Sequence[DdsPeer]) -> str | None:
    """What keeps a topic from being told; `peers` are its subscribers."""
    name = out.topic.name
    if not peers:
        return (
            f"Nobody subscribes to {name}. Start the robot, or correct the topic's name, ROS_DOMAIN_ID or the network."
        )
    if out.readers() >= len(peers):
        return None
    fitting = [peer for peer in peers if peer.type == dds_type(out.topic)]
    if not fitting:
        return _type(name, "is subscribed to as", peers[0], out.topic.type)
    offered = out.topic.qos.reliability or "reliable"
    for peer in fitting:
        reliability, durability = _of(peer)
        if _RELIABILITY[offered] < _RELIABILITY[reliability]:
            return _qos(name, f"a subscriber asks for {reliability}", f"qos.reliability offers {offered}")
        if _DURABILITY[out.topic.qos.durability] < _DURABILITY[durability]:
            kept = out.topic.qos.durability
            return _qos(name, f"a subscriber asks for {durability}", f"qos.durability offers {kept}")
    count, policy = out.incompatible()
    if count and not out.readers():
        return _qos(name, f"a subscriber's {policy} does not suit us", "no key changes that here")
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
