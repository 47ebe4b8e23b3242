"""A tool's schema: what it says of a call, read once, in one way, for decoding, training rows and validation."""

from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

__all__ = ["ToolSchema", "tool_schemas"]
