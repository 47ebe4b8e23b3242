"""The agent for the lander: its tools and goals, and phrasings of these goals."""

from rtcontrol.agents.lander.tools import agent

__all__ = ["agent"]
