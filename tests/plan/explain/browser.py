"""A real browser to look at a report with: headless Chromium, told what to do over a pair of pipes.

Chromium reads and writes its DevTools protocol on the file descriptors 3 and 4 when it is asked to: one JSON object
after the other, each ended by a zero byte. So nothing has to be installed but Chromium.

As a program it takes the pictures of the documents: the page, a folder, what follows the # of the address, and which
sections ("overview" is the top of the page):

    python tests/plan/explain/browser.py report.html docs/images "hardware=h200" overview communication
"""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # root has none, and the only pages shown are our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
PATIENCE = 60.0  # seconds: the machine may be busy


@contextlib.contextmanager
def open_browser() -> Iterator["Browser"]:
    """Starts a browser with a profile of its own, and ends both."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        commands, replies = os.pipe(), os.pipe()
        process = _spawn(program, profile, stdin=commands[0], stdout=replies[1])
        try:
            yield Browser(commands[1], replies[0])
        finally:
            os.kill(process, signal.SIGTERM)
            os.waitpid(process, 0)
            os.close(commands[1])
            os.close(replies[0])


def _spawn(program: str, profile: str, stdin: int, stdout: int) -> int:
    """Starts Chromium with two pipes as its descriptors 3 and 4, and closes our ends of them."""
    # Out of the way first: either might be 3 or 4 itself.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (stdin, stdout)]
    silent = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, silent, 1), (os.POSIX_SPAWN_DUP2, silent, 2)]
    actions += [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
    process = os.posix_spawn(
        program, [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"], os.environ, file_actions=actions
    )
    for end in (stdin, stdout, silent, *ends):
        os.close(end)
    return process


class Browser:
    """One tab: what it shows, what it asked the network for, what it complained about."""

    def __init__(self, commands: int, replies: int):
        self._commands, self._replies = commands, replies
        self._unread = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends one command of the protocol, and returns its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(self._replies, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError("the browser does not answer")
            self._unread += chunk
        message, _, self._unread = self._unread.partition(b"\0")
        decoded = json.loads(message)
        if "method" in decoded:
            self.events.append(decoded)
        return decoded

    def set_viewport(self, width: int, height: int, dark: bool = False) -> None:
        """Sets the size of the window in CSS pixels, and which colours the reader prefers."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path, choices: str = "") -> None:
        """Shows a file, and waits until it has loaded. `choices` is the part of the address after the #."""
        self.send("Page.navigate", url="about:blank")
        self.events.clear()
        self.send("Page.navigate", url=f"{path.as_uri()}#{choices}")
        deadline = time.monotonic() + PATIENCE
        while not self.run("location.protocol === 'file:' && document.readyState === 'complete'"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path.name} does not load")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Returns the value of a JavaScript expression in the page; an exception there is one here."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description", details["text"]))
        return result["result"].get("value")

    def requests(self) -> list[str]:
        """The addresses that were asked for since the page was opened, its own left out."""
        sent = [event["params"] for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if each.get("type") != "Document"]

    def complaints(self) -> list[str]:
        """The errors and warnings since the page was opened: exceptions, the console's and the browser's own."""
        found = []
        for event in self.events:
            match event:
                case {"method": "Runtime.exceptionThrown", "params": params}:
                    found.append(json.dumps(params["exceptionDetails"]))
                case {"method": "Runtime.consoleAPICalled", "params": params} if params["type"] in ("error", "warning"):
                    found.append(json.dumps(params["args"]))
                case {"method": "Log.entryAdded", "params": {"entry": entry}}:
                    found.append(entry["text"])
        return found

    def point_at(self, selector: str) -> None:
        """Moves the mouse to the middle of an element."""
        self._mouse("mouseMoved", selector)

    def click(self, selector: str) -> None:
        """Clicks in the middle of an element, as a hand would."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._mouse(kind, selector)

    def _mouse(self, kind: str, selector: str) -> None:
        x, y = self.run(
            f"""(() => {{
                const box = document.querySelector({json.dumps(selector)});
                box.scrollIntoViewIfNeeded();
                const {{x, y, width, height}} = box.getBoundingClientRect();
                return [x + width / 2, y + height / 2];
            }})()"""
        )
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def press(self, key: str) -> None:
        """Presses a key, by its name in JavaScript."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def type(self, text: str) -> None:
        """Types text into the element that has the focus."""
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path, selector: str | None = None) -> None:
        """Writes a PNG of the window, or of one element with a little space around it."""
        clip: dict[str, Any] = {}
        if selector:
            box = self.run(
                f"""(() => {{
                    const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();
                    const [x, y] = [box.x + scrollX - 16, box.y + scrollY];
                    return {{x, y, width: box.width + 32, height: box.height + 16, scale: 1}};
                }})()"""
            )
            clip = {"clip": box, "captureBeyondViewport": True}
        image = self.send("Page.captureScreenshot", format="png", optimizeForSpeed=False, **clip)
        path.write_bytes(base64.b64decode(image["data"]))


def take_pictures(page: Path, folder: Path, choices: str, sections: list[str]) -> None:
    """Writes `report-SECTION.png` for each section of a page."""
    with open_browser() as browser:
        browser.set_viewport(1120, 1000)
        browser.open(page.resolve(), choices)
        for name in sections:
            browser.screenshot(folder / f"report-{name}.png", None if name == "overview" else f"#{name}")


if __name__ == "__main__":
    take_pictures(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
