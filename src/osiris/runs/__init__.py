"""Run directories: their paths and lock, the state of a run, the records in its files, and the reader."""
