"""ROS 2's environment variables as a DDS domain and Cyclone DDS's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from rtcontrol.bridges.ros2.errors import Ros2BridgeError

MAX_DOMAIN = 232
RANGES = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")


@dataclass(frozen=True)
class Domain:
    """A DDS domain: its number, Cyclone's XML for it, who can be reached, and which hosts are asked by name."""

    number: int
    xml: str
    reach: str
    peers: tuple[str, ...] = ()


def domain(environ: Mapping[str, str]) -> Domain:
    """What ROS_DOMAIN_ID, ROS_LOCALHOST_ONLY, ROS_AUTOMATIC_DISCOVERY_RANGE and ROS_STATIC_PEERS ask for.

    In ROS 2 they act in the middleware layer, which is not here, so they are mirrored: LOCALHOST keeps to the loopback
    interface; a CYCLONEDDS_URI of the user is read after, and wins. Raises Ros2BridgeError naming the variable.
    """
    number = _number(environ.get("ROS_DOMAIN_ID") or "0")
    peers = [p for p in environ.get("ROS_STATIC_PEERS", "").split(";") if p]
    reach = environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE") or "SUBNET"
    if reach not in RANGES:
        raise Ros2BridgeError(f"ROS_AUTOMATIC_DISCOVERY_RANGE={reach} is unknown.", f"Set one of {', '.join(RANGES)}.")
    # As in rcl: the older variable wins, and then peers do not count.
    if environ.get("ROS_LOCALHOST_ONLY") == "1":
        reach, peers = "LOCALHOST", []
    general = discovery = ""
    if reach == "LOCALHOST":
        loopback = '<Interfaces><NetworkInterface address="127.0.0.1" multicast="false"/></Interfaces>'
        general = f"<General>{loopback}<AllowMulticast>false</AllowMulticast></General>"
        peers = ["localhost", *peers]
    elif reach == "OFF":
        general, peers = "<General><AllowMulticast>false</AllowMulticast></General>", []
        # Nobody else has this tag, so nobody is found.
        discovery = f"<ParticipantIndex>none</ParticipantIndex><Tag>rtcontrol_off_{os.getpid()}</Tag>"
    elif reach == "SYSTEM_DEFAULT":
        peers = []
    if peers:
        listed = "".join(f"<Peer address={quoteattr(peer)}/>" for peer in peers)
        discovery = "<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>"
        discovery += f"<Peers>{listed}</Peers>"
    parts = general + (f"<Discovery>{discovery}</Discovery>" if discovery else "")
    own = f"<CycloneDDS><Domain>{parts}</Domain></CycloneDDS>" if parts else ""
    xml = ",".join(part for part in (own, environ.get("CYCLONEDDS_URI", "")) if part)
    if not xml.isascii():
        raise Ros2BridgeError("CYCLONEDDS_URI or ROS_STATIC_PEERS is not plain ASCII.", "Remove its other characters.")
    return Domain(number, xml, reach, tuple(peers))


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_DOMAIN:
        raise Ros2BridgeError(f"ROS_DOMAIN_ID={text} is no domain.", f"Set a number from 0 to {MAX_DOMAIN}.")
    return int(text)
