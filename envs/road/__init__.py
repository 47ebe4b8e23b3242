"""A road with lanes, traffic and lights along one coordinate, told how to drive."""

from rtcontrol.envs.registry import BundledWorld

WORLD = BundledWorld(
    "road",
    "A road with lanes, traffic and lights along one coordinate; drive, change lane, follow, turn, overtake, stop.",
    agent="driver",
)
