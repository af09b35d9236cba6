"""Processes that start at once: a server that has imported everything forks a child for each job.

Importing torch takes seconds, and these tests start hundreds of runs. A child is a process of its own: it can be
killed, stopped and waited for like any other. Run as a program this file is the server, imported it is the client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


class ForkServer:
    """`start` a job of jobs.py in a new process, `wait` for its exit code (negative: the signal that killed it)."""

    def __init__(self) -> None:
        command = [sys.executable, __file__]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask({"ready": True})

    def start(self, job: str, output: Path, environment: dict[str, str] | None = None, **arguments: Any) -> int:
        """The process id. What it prints goes to the file `output`."""
        request = {"job": job, "output": str(output), "environment": environment or {}, "arguments": arguments}
        return self._ask(request)

    def wait(self, pid: int) -> int:
        return self._ask({"wait": pid})

    def run(self, job: str, output: Path, environment: dict[str, str] | None = None, **arguments: Any) -> int:
        return self.wait(self.start(job, output, environment, **arguments))

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, request: dict[str, Any]) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def serve() -> None:
    import jobs

    for line in sys.stdin:
        request = json.loads(line)
        if "ready" in request:
            answer = 0
        elif "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _child(jobs, request)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _child(jobs: Any, request: dict[str, Any]) -> None:
    """Never returns."""
    code = 70
    try:
        descriptor = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.update(request["environment"])
        code = int(getattr(jobs, request["job"])(**request["arguments"]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
