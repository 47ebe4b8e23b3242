"""The agent of the paddle: its tools, its goals, and the ways to say them."""

from rtcontrol.agents.paddle.tools import agent

__all__ = ["agent"]
