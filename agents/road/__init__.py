"""The driver agent, for the bundled road and for CARLA: its tools and goals, and phrasings of these goals."""

from rtcontrol.agents.road.tools import agent

__all__ = ["agent"]
