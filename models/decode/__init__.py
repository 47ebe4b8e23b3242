"""Decode calls from model scores: compile tools' legal values to token tries, and choose the nodes to evaluate."""
