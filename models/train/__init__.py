"""How a controller model is made: packed-tree training of ST heads from an iterator of rows."""
