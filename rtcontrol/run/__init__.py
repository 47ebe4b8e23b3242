"""Assemble, check, run and report a control run, from the options of the run to the exit status."""
