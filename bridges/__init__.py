"""The ground floor: for programs at the other end of a socket; imports neither torch nor ray nor transformers."""
