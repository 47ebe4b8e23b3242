"""A paddle game against a scripted player; instructions say what to do with the ball."""
