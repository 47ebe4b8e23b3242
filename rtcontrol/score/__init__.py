"""Measure how well a model follows instructions in a world that has goals, a judge and an expert."""
