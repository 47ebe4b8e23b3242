"""A tool's schema: what it says of a call, read once, in one way, for decoding, training rows and validation."""
