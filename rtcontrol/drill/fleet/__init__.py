"""The drill of a fleet: machines, servers and clients on one host, broken on purpose."""
