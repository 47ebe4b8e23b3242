"""A paddle game against a scripted person, instructed what to do with the ball."""
