"""A paddle game against a scripted person, told what to do with the ball."""
