"""Decode calls from scores: compile the values of tools to token tries, choose the nodes to evaluate, read their
scores."""
