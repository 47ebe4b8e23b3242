"""Drills, which inject faults into a run on purpose and judge the causes that the run reports."""
