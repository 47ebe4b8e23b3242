"""The ground floor: what a program at the other end of a socket needs; imports neither torch nor ray nor transformers."""
