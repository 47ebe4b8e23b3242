"""Gymnasium's continuous LunarLander, instructed where to land or hover."""
