"""One run from its options to its exit status: assembled, checked for fit, run, reported."""
