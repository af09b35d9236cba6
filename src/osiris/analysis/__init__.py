"""One file per analysis of the paper, each a pure function on arrays."""
