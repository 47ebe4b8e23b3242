"""Read a tool's schema once, in one normal form, for decoding, training rows and validation."""

from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

__all__ = ["ToolSchema", "tool_schemas"]
