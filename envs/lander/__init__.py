"""Gymnasium's continuous LunarLander, told where to land or hover."""
