"""Drills: faults are injected into a run on purpose, and what it says of them is judged."""
