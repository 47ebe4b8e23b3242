"""ROS 2's environment variables as a DDS domain and Cyclone DDS's configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import quoteattr

from rtcontrol_client.ros2.errors import Ros2BridgeError

MAX_DOMAIN = 232
NEAR = 99  # so many processes of this machine are asked; our own port is any, as without peers
ANNOUNCED = "1s"  # how often we say that we are here
RANGES = ("SUBNET", "LOCALHOST", "OFF", "SYSTEM_DEFAULT")
# cyclonedds 11 finds the types that Fast DDS 3 (1.15; ROS 2 Kilted) and Cyclone before 0.10.3 (1.16) announce invalid
# where they hold arrays or sequences, and drops their endpoints (cyclonedds PR 2333). As in ROS 2, a type is its name.
COMPATIBILITY = "<Compatibility><IgnoreTypeInformation>1.15,1.16</IgnoreTypeInformation></Compatibility>"


@dataclass(frozen=True)
class Domain:
    """A DDS domain: its number, Cyclone's XML for it, who can be reached, and which hosts are asked by name."""

    number: int
    xml: str
    reach: str
    peers: tuple[str, ...] = ()
    # Tried first, in turn: the same, and nodes that keep to this machine's loopback interface. The second is for where
    # loopback is all there is: Cyclone takes no interface twice.
    near: tuple[str, ...] = ()


def domain(environ: Mapping[str, str]) -> Domain:
    """What ROS_DOMAIN_ID, ROS_LOCALHOST_ONLY, ROS_AUTOMATIC_DISCOVERY_RANGE and ROS_STATIC_PEERS ask for.

    By default nodes with LOCALHOST are met, too, over the loopback interface: what ROS itself does not do.
    In ROS 2 they act in the middleware layer, which is not here, so they are mirrored: LOCALHOST keeps to the loopback
    interface; a CYCLONEDDS_URI of the user is read after, and wins in what it sets. Raises Ros2BridgeError naming the
    variable, also one that says that the robot's nodes cannot be met here.
    """
    _reachable(environ)
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
        discovery = _discovery(peers)
    parts = COMPATIBILITY + general + (f"<Discovery>{discovery}</Discovery>" if discovery else "")
    own = f"<CycloneDDS><Domain>{parts}</Domain></CycloneDDS>"
    xml = ",".join(part for part in (own, environ.get("CYCLONEDDS_URI", "")) if part)
    if not xml.isascii():
        raise Ros2BridgeError("CYCLONEDDS_URI or ROS_STATIC_PEERS is not plain ASCII.", "Remove its other characters.")
    near = _near(peers) if reach == "SUBNET" and not environ.get("CYCLONEDDS_URI") else ()
    return Domain(number, xml, reach, tuple(peers), near)


def _discovery(peers: Sequence[str], index: str = "auto", most: int = 32) -> str:
    listed = "".join(f"<Peer address={quoteattr(peer)}/>" for peer in peers)
    index = f"<ParticipantIndex>{index}</ParticipantIndex><MaxAutoParticipantIndex>{most}</MaxAutoParticipantIndex>"
    # A node with ROS_LOCALHOST_ONLY that starts after us asks nobody here: it is found by our next announcement.
    return f"{index}<SPDPInterval>{ANNOUNCED}</SPDPInterval><Peers>{listed}</Peers>"


def _near(peers: Sequence[str]) -> tuple[str, str]:
    both = '<NetworkInterface autodetermine="true"/><NetworkInterface address="127.0.0.1" multicast="false"/>'
    general = f"<General><Interfaces>{both}</Interfaces></General>"
    asked = "localhost", *peers
    parts = (
        f"{general}<Discovery>{_discovery(asked, 'none', NEAR)}</Discovery>",
        f"<Discovery>{_discovery(asked, 'auto', NEAR)}</Discovery>",  # with any port it is not found there
    )
    first, second = (f"<CycloneDDS><Domain>{COMPATIBILITY}{part}</Domain></CycloneDDS>" for part in parts)
    return first, second


def _reachable(environ: Mapping[str, str]) -> None:
    """Raises Ros2BridgeError where the nodes of this environment speak no plain DDS."""
    rmw = environ.get("RMW_IMPLEMENTATION", "")
    for variable, told in (
        ("RMW_IMPLEMENTATION", "is no DDS" if rmw and not re.search("dds|rtps|connext", rmw) else ""),
        ("ROS_DISCOVERY_SERVER", "is a server of Fast DDS alone" if environ.get("ROS_DISCOVERY_SERVER") else ""),
        ("ROS_SECURITY_ENABLE", "asks for keys" if environ.get("ROS_SECURITY_ENABLE") == "true" else ""),
    ):
        if told:
            what = f"{variable}={environ[variable]} {told}: this bridge and nodes with it do not meet."
            raise Ros2BridgeError(what, "Start the robot without it and unset it here, or use the rclpy node.")


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_DOMAIN:
        raise Ros2BridgeError(f"ROS_DOMAIN_ID={text} is no domain.", f"Set a number from 0 to {MAX_DOMAIN}.")
    return int(text)
