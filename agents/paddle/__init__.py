"""The agent for the paddle game: its tools and goals, and phrasings of these goals."""

from rtcontrol.agents.paddle.tools import agent

__all__ = ["agent"]
