"""Clients of a robot's services and actions over whatever middleware."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rtcontrol_client.ros2.config import Qos
from rtcontrol_client.ros2.definitions import ServiceType
from rtcontrol_client.ros2.goals import ActionClient, ActionWires, Heard
from rtcontrol_client.ros2.links import ActionLink, ServiceLink
from rtcontrol_client.ros2.mapper import Mapper
from rtcontrol_client.ros2.parts import Topic
from rtcontrol_client.ros2.services import Served, ServiceClient

Channel = ActionClient | ServiceClient
FEEDBACK = Qos(depth=10)
STATUS = Qos(reliability="reliable", durability="transient_local")


class Exchange(Protocol):
    """What services and actions are reached through."""

    def service(self, name: str, kind: ServiceType, relative: bool, listens: bool = True) -> Served:
        """Begin to be a client; who does not listen is none of those whose answers are mixed up."""
        ...

    def listen(self, topic: Topic) -> Heard:
        """Begin to read a topic of an action: nobody is told what keeps it from being heard."""
        ...


def channels(
    mapper: Mapper, net: Exchange, names: Iterable[str] | None = None, alone: bool = False
) -> dict[str, Channel]:
    """Name -> client of each service and action, or of those named; `alone`: of a guard, which waits for no answer, and
    cancels all goals."""
    answer_s = mapper.config.answer_ms / 1e3
    found: dict[str, Channel] = {}
    for link in mapper.links.actions.values():
        if names is None or link.name in names:
            found[link.name] = ActionClient(
                link.name, link.kind, link.view, _wires(link, net, not alone), answer_s, sweeps=alone
            )
    for one in mapper.links.services.values():
        if names is None or one.name in names:
            found[one.name] = ServiceClient(one.name, one.view, _served(one, net, not alone), answer_s)
    return found


def _served(link: ServiceLink, net: Exchange, listens: bool) -> Served:
    return net.service(link.name, link.kind, link.relative, listens)


def _wires(link: ActionLink, net: Exchange, listens: bool) -> ActionWires:
    kind, hidden = link.kind, f"{link.name}/_action"

    def topic(name: str, part: tuple[str, object, str], qos: Qos) -> Topic:
        return Topic(f"{hidden}/{name}", *part, qos, link.relative)

    return ActionWires(
        net.service(f"{hidden}/send_goal", kind.send, link.relative, listens),
        net.service(f"{hidden}/get_result", kind.ask, link.relative, listens),
        net.service(f"{hidden}/cancel_goal", kind.cancel, link.relative, listens),
        net.listen(topic("feedback", kind.feedback, FEEDBACK)),
        net.listen(topic("status", kind.status, STATUS)),
    )
