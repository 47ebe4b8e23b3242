"""Protocol 1.1 between an rtcontrol server and its clients: messages, encoded as msgpack for ZeroMQ or as JSON for
WebSocket (docs/protocol.md)."""

from rtcontrol_client.wire.codec import decode_json, decode_msgpack, encode_json, encode_msgpack
from rtcontrol_client.wire.errors import Code, WireError
from rtcontrol_client.wire.limits import LIMITS, Limits
from rtcontrol_client.wire.messages import PROTOCOL, Message

__all__ = ["LIMITS", "PROTOCOL", "Code", "Limits", "Message", "WireError"]
__all__ += ["decode_json", "decode_msgpack", "encode_json", "encode_msgpack"]
