"""Evaluate calls on rows, and episodes in a world."""
