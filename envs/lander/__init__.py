"""Gymnasium's continuous LunarLander, told where to land or hover."""

from rtcontrol.envs.registry import BundledWorld

WORLD = BundledWorld(
    "lander",
    "Gymnasium's continuous LunarLander, 50 physics steps a second; land, or hover, where you are told.",
    agent="lander",
    pictures=True,
    needs=("Gymnasium with Box2D", 'pip install "gymnasium[box2d]"'),
)
