"""Pages in headless Chromium, if there is one: they open without an error, reach nothing, and fit the screen."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from curate.pages.document import document
from curate.pages.read import read_page
from tests.pages.samples import JOBS, NOW

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium"),
]

NO_ORIGIN = "not an origin"
SCREENS = {"phone, dark": (390, 800, True), "desk, light": (1600, 900, False)}
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
)
MEASURE = "<script>document.title = JSON.stringify([document.documentElement.scrollWidth, innerWidth])</script></body>"


def browse(page: Path, folder: Path, *options: str) -> tuple[str, str]:
    """Opens a page; returns the document as it is then, and what the browser logged."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *QUIET, f"--user-data-dir={folder}", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


def looked_at(wide: int, high: int, *, dark: bool) -> list[str]:
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    return [f"--window-size={wide},{high}", *scheme]


def requests(log: Path) -> set[str]:
    """Returns what a page asked for; what the browser asks for by itself has no origin."""
    told = [event.get("params") for event in orjson.loads(log.read_bytes())["events"]]
    of_page = [one for one in told if isinstance(one, dict) and one.get("initiator", NO_ORIGIN) != NO_ORIGIN]
    return {one["url"] for one in of_page if "url" in one}


def console(logged: str) -> list[str]:
    return [line for line in logged.splitlines() if "CONSOLE" in line]


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", JOBS)
def test_a_page_opens(jobs: dict[str, str], tmp_path: Path, name: str, screen: str) -> None:
    """Without a word on the console, and without a request."""
    page, log = tmp_path / "page.html", tmp_path / "net.json"
    page.write_bytes(document(read_page(jobs[name], NOW)))
    wide, high, dark = SCREENS[screen]
    options = [*looked_at(wide, high, dark=dark), f"--log-net-log={log}"]
    dom, logged = browse(page, tmp_path / "profile", *options)
    assert console(logged) == []
    assert "Copy</button>" in dom or 'class="command"' not in dom
    assert requests(log) == set()


def test_a_request_and_an_error_would_be_seen(tmp_path: Path) -> None:
    """The test sees what pages must not do."""
    page, log = tmp_path / "page.html", tmp_path / "net.json"
    page.write_text('<img src="http://evil.example/x"><script>console.error("no")</script>')
    _, logged = browse(page, tmp_path / "profile", f"--log-net-log={log}")
    assert requests(log) == {"http://evil.example/x"}
    assert len(console(logged)) == 1


@pytest.mark.parametrize("name", JOBS)
def test_a_page_fits_a_phone(jobs: dict[str, str], tmp_path: Path, name: str) -> None:
    """What is wider than the screen scrolls in its own place; the page does not."""
    data = document(read_page(jobs[name], NOW)).decode()
    page = tmp_path / "page.html"
    # To be measured, it runs a script of the test's.
    page.write_text(re.sub(r"<meta http-equiv[^>]*>", "", data).replace("</body>", MEASURE))
    dom, _ = browse(page, tmp_path / "profile", *looked_at(500, 900, dark=False))
    found = re.search(r"<title>(.*?)</title>", dom)
    assert found is not None
    needed, there = orjson.loads(found[1])
    assert needed <= there
