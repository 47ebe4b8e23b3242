"""Define agents: their tools, observation text, instructions, safe calls and models."""

from rtcontrol.agents.agent import Agent, Fallback
from rtcontrol.agents.goals import Goal, Goals
from rtcontrol.agents.tool import Doc, Group, InvalidCall, OneOf, Range, Text, Tool, Tools, remote_tool, tool

__all__ = [
    "Agent",
    "Doc",
    "Fallback",
    "Goal",
    "Goals",
    "Group",
    "InvalidCall",
    "OneOf",
    "Range",
    "Text",
    "Tool",
    "Tools",
    "remote_tool",
    "tool",
]
