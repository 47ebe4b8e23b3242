"""The client: joins any program to the control loop. Its public names stand in `rtcontrol_client`."""
