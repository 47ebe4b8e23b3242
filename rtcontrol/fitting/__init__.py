"""`fit`: a controller of one's own tools, learnt from rows, a teacher, recordings or a bundled skill."""
