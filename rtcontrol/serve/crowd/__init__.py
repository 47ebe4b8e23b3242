"""Crowds: a session with many members, each with its own goal, rate and priority."""
