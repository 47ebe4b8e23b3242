"""Loop, actuator, session and client by simulated time, with injected faults: `rtcontrol drill --simulate`."""
