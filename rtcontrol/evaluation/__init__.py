"""Evaluation of models and endpoints on rows: what answers, the run that goes on, its tables and its page."""
