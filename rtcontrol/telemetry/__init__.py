"""What a run leaves: its record, readable after SIGKILL, and the deadline-miss report that it comes to."""
