"""Pages and reports in headless Chromium, if there is one: they open without an error, reach nothing, fit the screen,
and axe finds nothing that keeps anybody from reading them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curate.pages.document import document, refusal
from curate.pages.read import read_page
from curate.pages.server import PageServer
from curate.report import html
from tests.pages.samples import JOBS, NOW
from tests.report.samples import CORPORA, reports
from tests.support.chromium import AXE, CHROMIUM, Chromium
from tests.support.fakes import FakeClock

__all__ = ["reports"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium, which scripts/browser.sh installs"),
]
needs_axe = pytest.mark.skipif(not AXE.exists(), reason="there is no axe-core, which scripts/browser.sh installs")

SCREENS = [(wide, dark) for wide in (390, 1600) for dark in (False, True)]
NAMES = [*(f"page of a {name} job" for name in JOBS), *(f"report of {name} rows" for name in CORPORA)]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of this process."""
    browser = Chromium(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(params=NAMES)
def page(request: pytest.FixtureRequest, jobs: dict[str, str], reports: dict[str, dict[str, Any]], folder: Path) -> str:
    """The address of a page, or of a report."""
    path = folder / f"{request.param}.html"
    kind, _, name, _ = request.param.replace(" a ", " ").split(" ")
    if not path.exists():
        path.write_bytes(document(read_page(jobs[name], NOW)) if kind == "page" else html.document(reports[name]))
    return path.as_uri()


@pytest.mark.ci(4)
@pytest.mark.parametrize(("wide", "dark"), SCREENS)
def test_a_page_opens(chromium: Chromium, page: str, *, wide: int, dark: bool) -> None:
    """Without a word on the console, and without a request. What is wider than the screen scrolls in its own place."""
    with chromium.open(page, wide=wide, dark=dark) as look:
        assert look.console == []
        assert look.requests == []
        assert look.value("document.documentElement.scrollWidth") <= wide
        buttons, commands = look.value("['button', '.command'].map(one => document.querySelectorAll(one).length)")
        assert buttons == commands
        back = look.value("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, back[4:-1].split(","))) < 200) == dark


@pytest.mark.ci(2)
@needs_axe
def test_anybody_can_read_a_page(chromium: Chromium, page: str) -> None:
    """By keyboard, screen reader, and with eyes that need contrast; in the dark only colours differ."""
    with chromium.open(page, wide=390) as look:
        assert look.violations() == []
    with chromium.open(page, wide=1600, dark=True) as look:
        assert look.violations("color-contrast") == []


def test_in_print_nothing_is_hidden(chromium: Chromium, jobs: dict[str, str], folder: Path) -> None:
    """What is folded on the screen is on paper, and what can only be pressed is not."""
    path = folder / "print.html"
    path.write_bytes(document(read_page(jobs["failed"], NOW)))
    with chromium.open(path.as_uri(), wide=800, media="print") as look:
        shown = "[...document.querySelectorAll('nav, button')].filter(one => one.checkVisibility()).length"
        assert look.value(shown) == 0
        look.value("dispatchEvent(new Event('beforeprint')); 0")
        assert look.value("[...document.querySelectorAll('details')].every(one => one.open)")


@needs_axe
@pytest.mark.parametrize("address", ["/", "/job?output=nowhere"])
def test_pages_of_a_server(chromium: Chromium, jobs: dict[str, str], address: str) -> None:
    """The list of jobs, and the word that there is no such page, reach nothing but the server."""
    with PageServer([jobs["finished"], jobs["running"]], 0, FakeClock(NOW)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with chromium.open(server.url.rstrip("/") + address, wide=390) as look:
                # A page that is not there has a status that the browser notes.
                assert [one for one in look.console if "404" not in one] == []
                assert look.requests == []
                assert look.violations() == []
        finally:
            server.shutdown()
            thread.join()


class TestTheTest:
    """It sees what pages must not do."""

    @pytest.fixture
    def bad(self, chromium: Chromium, tmp_path: Path) -> Iterator[Any]:
        path = tmp_path / "page.html"
        path.write_text('<img src="http://evil.example/x"><script>console.error("no"); nothing()</script>')
        with chromium.open(path.as_uri()) as look:
            yield look

    def test_requests_and_errors(self, bad: Any) -> None:
        assert bad.requests == ["http://evil.example/x"]
        assert "error: no" in bad.console
        assert any("nothing is not defined" in one for one in bad.console)

    @needs_axe
    def test_violations(self, bad: Any) -> None:
        assert any(one.startswith("image-alt: ") for one in bad.violations())

    def test_what_the_policy_refuses(self, chromium: Chromium, tmp_path: Path) -> None:
        """Markup that came through as such would be heard of."""
        path = tmp_path / "page.html"
        path.write_bytes(refusal("x").replace(b"</main>", b"<img src=http://evil.example/x onerror=alert(1)></main>"))
        with chromium.open(path.as_uri()) as look:
            assert look.requests == ["http://evil.example/x"]
            assert any("Content Security Policy" in one for one in look.console)
