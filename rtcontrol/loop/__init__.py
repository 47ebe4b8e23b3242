"""The control loop: clock, deadlines, causes of misses, actuator and fallback."""
