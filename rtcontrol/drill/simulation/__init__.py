"""Simulate loop, actuator, session and client with injected faults in simulated time: `rtcontrol drill --simulate`."""
