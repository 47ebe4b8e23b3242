"""The server of the wire: many clients, each with its own tools, loop and deadline, in one process."""
