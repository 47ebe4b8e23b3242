"""The sets that rows are read from, one a file: each gives rows, or says why a sample gives none."""
