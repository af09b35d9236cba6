"""A run and its episodes: steps, optimisers, schedule, logs, and the evaluation of what is saved."""
