"""Synthetic tasks with a true answer by construction: what a base model learns before it meets a world."""
