"""The agent that flies the lander: its tools, its goals, and the many ways to tell it."""

from rtcontrol.agents.lander.tools import agent

__all__ = ["agent"]
