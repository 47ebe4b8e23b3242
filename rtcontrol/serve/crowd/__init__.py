"""Crowds: one session of many members, each with a goal, a rate, a priority and an account of its own."""
