"""The control loop: clock, deadlines and their misses' causes, actuator, fallback."""
