"""Runs whose world is CARLA, or the stand-in: the bridge in a process of its own, supervised."""
