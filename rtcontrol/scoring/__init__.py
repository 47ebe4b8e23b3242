"""Scores of a model in a world: its goals beside expert, no-op, random and another goal, phrasings, delays, rates."""
