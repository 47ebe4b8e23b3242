"""The agent of the lander: its tools, its goals, and the ways to say them."""

from rtcontrol.agents.lander.tools import agent

__all__ = ["agent"]
