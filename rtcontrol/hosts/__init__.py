"""Decoder hosts: where decisions are made, off the control loop's thread."""

from rtcontrol.hosts.protocol import Decider, DeciderSource, DecisionReply, DecisionRequest, Host, HostEvent

__all__ = ["Decider", "DeciderSource", "DecisionReply", "DecisionRequest", "Host", "HostEvent"]
