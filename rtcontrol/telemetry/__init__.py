"""Write and read the record of a run, which survives SIGKILL, and make the deadline-miss report from it."""
