"""Evaluate a model on rows: answer each row, judge the answers, and count the right answers."""
