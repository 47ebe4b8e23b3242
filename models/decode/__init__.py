"""Decide calls without a model: plan the tools' values as token tries, choose the nodes to evaluate, read the
scores."""
