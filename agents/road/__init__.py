"""The driver, on the road and in CARLA: its tools, its goals, and the ways to say them."""

from rtcontrol.agents.road.tools import agent

__all__ = ["agent"]
