"""Evaluate a model on rows: answer each, judge the answers, and count."""
