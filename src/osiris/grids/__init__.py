"""Grids of runs: planned, launched here or on a SLURM cluster, watched and summarised."""
