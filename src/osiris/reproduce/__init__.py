"""The tables and figures of the paper as grids of runs."""
