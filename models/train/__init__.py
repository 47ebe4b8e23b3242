"""How a controller model is made: packed-tree training of ST heads from an iterator of rows, or a checkpoint of others
that is given its prompt template."""
