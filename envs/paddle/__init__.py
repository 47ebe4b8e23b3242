"""A paddle game against a scripted person, told what to do with the ball."""

from rtcontrol.envs.registry import BundledWorld

WORLD = BundledWorld(
    "paddle",
    "A paddle game, 60 physics steps a second, against a scripted person; return, miss, aim, stay or mirror.",
    agent="paddle",
    pictures=True,
)
