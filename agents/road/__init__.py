"""The agent that drives, on the road and in CARLA: its tools, its goals, and the many ways to tell it."""

from rtcontrol.agents.road.tools import agent

__all__ = ["agent"]
