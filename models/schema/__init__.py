"""Read tools' JSON schemas into one normal form, which decoding, training and validation share."""

from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas

__all__ = ["ToolSchema", "tool_schemas"]
