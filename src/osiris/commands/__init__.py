"""One module per command: a dataclass `Args` and `run(args) -> exit code`; heavy imports inside `run`."""
