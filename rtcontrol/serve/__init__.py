"""The server of the wire protocol: one process serves many clients, each with its own tools, loop and deadline."""
