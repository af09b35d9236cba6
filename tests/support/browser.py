"""A page in a headless Chromium, driven through its DevTools protocol over two pipes: no further package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt install chromium)")
FLAGS = (
    *("--headless", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--enable-unsafe-swiftshader", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
SECONDS = 60
CODES = {"Enter": 13, "Escape": 27}


class Page:
    """Collects what goes wrong in `problems`, and the addresses it asks for in `requests`."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive = send, receive
        self.buffer, self.number, self.session = b"", 0, ""
        self.problems, self.requests, self.loaded = list[str](), list[str](), False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self.number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.receive, 1 << 16)
            assert part, "the browser has ended"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        kind, found = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.problems.append(str(found["exceptionDetails"].get("exception", found["exceptionDetails"])))
        elif kind == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.problems.append(str(found["args"]))
        elif kind == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(found["entry"]["text"])
        elif kind == "Page.loadEventFired":
            self.loaded = True
        elif kind == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)

    def open(self, page: Path, ready: str) -> float:
        """Seconds until the expression `ready` is true."""
        started = time.perf_counter()
        self.loaded = False
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not self.loaded:
            self._note(self._read())
        self.until(ready)
        return time.perf_counter() - started

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.ask(f"Boolean({expression})"):
            assert time.monotonic() < end, f"{expression} did not come true; {self.problems}"
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        self.mouse("Moved", x, y)
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", buttons=1, clickCount=1)

    def key(self, key: str) -> None:
        text = {} if len(key) > 1 else {"text": key}
        code = CODES.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """`folder`: for what the browser itself writes."""
    assert CHROMIUM is not None
    to_child, to_us = os.pipe(), os.pipe()
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}"]
    # The protocol wants descriptors 3 and 4: a shell puts them there.
    script = f'exec "$@" 3<&{to_child[0]} 4>&{to_us[1]}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(to_child[0], to_us[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_child[0])
    os.close(to_us[1])
    try:
        page = Page(to_child[1], to_us[0])
        page.resize(1280, 800)
        yield page
    finally:
        process.kill()
        process.wait()
        os.close(to_child[1])
        os.close(to_us[0])
