"""The agent that plays the paddle: its tools, its goals, and the many ways to tell it."""

from rtcontrol.agents.paddle.tools import agent

__all__ = ["agent"]
