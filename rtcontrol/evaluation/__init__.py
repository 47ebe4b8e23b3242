"""Evaluation: of calls on rows, of episodes in a world, and the experiments about the method."""
