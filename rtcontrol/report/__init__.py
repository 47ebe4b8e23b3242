"""What a run comes to: the deadline-miss report, as JSON and as a table."""
