"""Drills: inject faults into a run on purpose, and check that the run reports the right causes of misses."""
