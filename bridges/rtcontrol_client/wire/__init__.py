"""Protocol 1.1 between the control loop and the programs that act: one message schema, sent as msgpack over ZeroMQ or
as JSON over WebSocket (docs/protocol.md)."""

from rtcontrol_client.wire.codec import decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.errors import Code, WireError
from rtcontrol_client.wire.limits import LIMITS, Limits
from rtcontrol_client.wire.messages import PROTOCOL, Message

__all__ = ["LIMITS", "PROTOCOL", "Code", "Limits", "Message", "WireError"]
__all__ += ["decode_json", "decode_msgpack", "encode_json", "encode_msgpack"]
