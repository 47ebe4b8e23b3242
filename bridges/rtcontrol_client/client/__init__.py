"""The client, which connects any program to the control loop. Import the public names from `rtcontrol_client`."""
