"""What teaches and what judges: rows of one format, read from the public sets, made up, counted and written."""
