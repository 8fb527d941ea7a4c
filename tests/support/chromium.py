"""Headless Chromium, steered over a pipe by the DevTools protocol: what a page says, asks for, and looks like.

One browser serves all tests of a process; each page has a context of its own, which shares nothing with others.
Messages are JSON, with a zero byte after each, so nothing but the standard library is needed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = ROOT / ".browser" / "node_modules" / "axe-core" / "axe.min.js"
"""What finds what keeps people from reading a page; scripts/browser.sh installs it."""
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    # A page that asks for something from elsewhere is seen to ask, and gets nothing.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-pipe",
)

Said = Mapping[str, Any]


@dataclass
class Look:
    """A page that was opened, until the block that opened it ends."""

    _send: Callable[..., Said]
    url: str
    console: list[str] = field(default_factory=list)
    """What it said on the console, and what the browser said of it there: errors, refusals, warnings."""
    requests: list[str] = field(default_factory=list)
    """What it asked for, beside itself."""

    def heard(self, event: Said) -> None:
        """Notes an event of the page."""
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled":
                texts = (str(one.get("value", one.get("description"))) for one in told["args"])
                self.console.append(f"{told['type']}: {' '.join(texts)}")
            case "Runtime.exceptionThrown":
                thrown = told["exceptionDetails"]
                self.console.append(str(thrown.get("exception", {}).get("description", thrown["text"])))
            case "Log.entryAdded":
                self.console.append(f"{told['entry']['level']}: {told['entry']['text']}")
            case "Network.requestWillBeSent":
                if told["request"]["url"] != self.url:
                    self.requests.append(told["request"]["url"])

    def value(self, script: str) -> Any:
        """Returns what an expression is in the page, as JSON; its promise is waited for."""
        asked = {"expression": script, "awaitPromise": True, "returnByValue": True}
        found = self._send("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def violations(self, *rules: str) -> list[str]:
        """Returns what axe finds wrong, by all of its rules or by these: the rule, and the elements."""
        self.value(AXE.read_text() + "; 0")
        options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
        found = self.value(f"axe.run(document, {orjson.dumps(options).decode()}).then(found => found.violations)")
        return [f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


class Chromium:
    """The browser, with its profile in a folder."""

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The protocol is spoken on 3 and 4, which a shell makes of others.
        shell = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        command = ["bash", "-c", shell, CHROMIUM, *_QUIET, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        with (folder / "chromium.log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(commands, answers)
            )
        os.close(commands)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._looks: dict[str, Look] = {}
        self._loaded: set[str] = set()

    def close(self) -> None:
        """Ends it, and all that it has started."""
        self.send("Browser.close")
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, session: str | None = None, **params: Any) -> Said:
        """Sends a command and returns its answer; events that come before it are noted."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = orjson.dumps(message) + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        while True:
            said = self._read()
            if said.get("id") == number:
                assert "error" not in said, (method, said["error"])
                found: Said = said["result"]
                return found

    @contextmanager
    def open(
        self, url: str, *, wide: int = 1600, high: int = 900, dark: bool = False, media: str = ""
    ) -> Iterator[Look]:
        """Opens an address and waits until the page is loaded."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        look = self._looks[session] = Look(lambda method, **params: self.send(method, session, **params), url)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.send(f"{domain}.enable", session)
            screen = {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}
            self.send("Emulation.setDeviceMetricsOverride", session, **screen)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.send("Emulation.setEmulatedMedia", session, media=media, features=[scheme])
            self.send("Page.navigate", session, url=url)
            while session not in self._loaded:
                self._read()
            # What its script began with is over, and has been told of, when this is answered.
            look.value("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            yield look
        finally:
            del self._looks[session]
            self.send("Target.disposeBrowserContext", browserContextId=context)

    def _read(self) -> Said:
        """Returns the next message; one that is an event is noted."""
        while b"\0" not in self._rest:
            data = os.read(self._from, 1 << 16)
            assert data, f"Chromium has ended with {self._process.wait()}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        said: Said = orjson.loads(line)
        session = said.get("sessionId", "")
        if said.get("method") == "Page.loadEventFired":
            self._loaded.add(session)
        if session in self._looks:
            self._looks[session].heard(said)
        return said
