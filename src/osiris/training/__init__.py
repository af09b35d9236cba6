"""Config, loop, checkpoints, several processes."""
