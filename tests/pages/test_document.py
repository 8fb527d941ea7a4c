"""The HTML of a page: nothing in it acts, whatever the job said, and it can be read by anybody."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from curate.pages.document import GENERATOR, document
from curate.pages.markup import Html, join, tag
from curate.pages.model import Head, Page
from curate.pages.read import read_page
from curate.pages.style import SCRIPT, STYLE
from tests.cli.running import Curate, curate
from tests.pages.samples import HOSTILE, JOBS, NOW

__all__ = ["curate"]

Jobs = dict[str, str]
VOID = {"meta"}


class Read(HTMLParser):
    """What is in a page: its elements with their attributes, the text of each, and whether they are closed in order."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(data.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag == name]


@pytest.fixture(params=JOBS)
def read(request: pytest.FixtureRequest, jobs: Jobs) -> Read:
    return Read(document(read_page(jobs[request.param], NOW)))


class TestHarmless:
    """Whatever a job said is shown as text."""

    def test_nothing_acts_but_what_is_the_pages_own(self, read: Read) -> None:
        """One script and one style, which its policy names; no attribute that runs, styles or fetches something."""
        assert (read.texts["script"], read.texts["style"]) == ([SCRIPT], [STYLE])
        assert {name for name, _ in read.elements} <= ALLOWED
        for name, attributes in read.elements:
            assert not [
                one for one in attributes if one.startswith("on") or one in ("src", "style", "srcset", "action")
            ]
            if href := attributes.get("href"):
                assert (name, href[0]) == ("a", "#")

    def test_the_policy_allows_no_network(self, read: Read) -> None:
        [content] = [one["content"] for one in read.named("meta") if one.get("http-equiv") == "Content-Security-Policy"]
        assert content is not None
        rules = dict(rule.split(" ", 1) for rule in content.split("; "))
        assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
        assert all(re.fullmatch(r"'sha256-[\w+/]{43}='", value) for value in rules.values())
        assert rules.keys() == {"style-src", "script-src"}

    def test_hostile_texts_are_shown_cut_and_without_controls(self, jobs: Jobs) -> None:
        data = document(read_page(jobs["hostile"], NOW)).decode()
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in data
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", data)
        assert len(data) < 100_000

    def test_a_model_of_hostile_texts(self) -> None:
        """Also where reading would have cut them: the document escapes for itself."""
        page = Page(NOW, Head(HOSTILE, HOSTILE, HOSTILE, HOSTILE), notes=(HOSTILE,))
        assert {name for name, _ in Read(document(page)).elements} <= ALLOWED

    def test_each_section_has_a_name(self, read: Read) -> None:
        """Also the notes of a damaged job: what reads the page aloud lists them."""
        noted = Read(document(Page(NOW, Head("a", "b", "c", "d"), notes=("no plan",))))
        for one in [*read.named("section"), *noted.named("section")]:
            assert one.get("aria-labelledby")


OF_HTML = (
    "html head meta title style body header main nav footer section article h1 h2 h3 p ul li dl div dt dd a span "
    "strong code pre table caption thead tbody tr th td figure figcaption progress time details summary script"
)
ALLOWED = {*OF_HTML.split(), "svg", "desc", "path", "rect", "text", "i"}


class TestReadable:
    """By keyboard and screen reader, and without the script."""

    def test_headings_descend_one_by_one(self, read: Read) -> None:
        levels = [int(name[1]) for name, _ in read.elements if re.fullmatch(r"h\d", name)]
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels))

    def test_tables_and_drawings_say_what_they_are(self, read: Read) -> None:
        assert len(read.named("caption")) == len(read.named("table")) > 0
        assert all(one.get("scope") in ("col", "row") for one in read.named("th"))
        drawn = [one for one in read.named("svg") if one.get("aria-hidden") != "true"]
        assert drawn
        assert all(one.get("role") == "img" and one.get("aria-label") for one in drawn)

    def test_links_lead_somewhere_and_ids_are_there_once(self, read: Read) -> None:
        ids = [one["id"] for _, one in read.elements if "id" in one]
        assert len(set(ids)) == len(ids)
        assert {(one["href"] or "")[1:] for one in read.named("a")} <= set(ids)
        assert {one["aria-labelledby"] for one in read.named("section") if "aria-labelledby" in one} <= set(ids)

    def test_what_scrolls_can_be_reached_by_keyboard(self, read: Read) -> None:
        assert all(one.get("tabindex") == "0" for _, one in read.elements if one.get("class") == "wide")

    def test_its_language_is_said(self, read: Read) -> None:
        assert read.named("html") == [{"lang": "en"}]


def test_the_same_model_gives_the_same_page(jobs: Jobs) -> None:
    """Byte by byte."""
    page = read_page(jobs["running"], NOW)
    assert document(page) == document(replace(page))


def test_markup_escapes_all_but_markup() -> None:
    """Text, attributes and numbers; and nothing twice."""
    assert (
        tag("p", "<", [Html("<b>"), ["&"], None, 3], title='"<', data_x=True)
        == '<p title="&quot;&lt;" data-x>&lt;<b>&amp;3</p>'
    )
    assert join(iter(["a", "<"])) == "a&lt;"


class TestCommand:
    """`curate page`."""

    def test_it_writes_a_file_and_says_which(self, jobs: Jobs, curate: Curate, tmp_path: Path) -> None:
        file = tmp_path / "page.html"
        for _ in range(2):  # the second time over the first page
            printed = curate("page", jobs["finished"], "--output", str(file))
            assert (printed.code, printed.out) == (0, f"{file}\n")
        assert GENERATOR.encode() in file.read_bytes()
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]

    def test_it_is_named_after_the_output(
        self, jobs: Jobs, curate: Curate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert curate("page", jobs["finished"] + "/").out == f"{tmp_path}/out.html\n"

    @pytest.mark.parametrize("kind", ["file", "folder", "link"])
    def test_no_other_file_is_replaced(self, jobs: Jobs, curate: Curate, tmp_path: Path, kind: str) -> None:
        file, other = tmp_path / "page.html", tmp_path / "other"
        other.write_text("mine")
        if kind == "file":
            file.write_text("mine")
        elif kind == "folder":
            file.mkdir()
        else:
            file.symlink_to(other)
        printed = curate("page", jobs["finished"], "--output", str(file))
        assert printed.code == 2
        assert "is not a page of curate" in printed.err
        assert other.read_text() == "mine"

    def test_a_folder_that_is_not_there(self, jobs: Jobs, curate: Curate, tmp_path: Path) -> None:
        printed = curate("page", jobs["finished"], "--output", str(tmp_path / "none" / "page.html"))
        assert (printed.code, "No such file or directory" in printed.err) == (2, True)

    def test_its_numbers_as_json(self, jobs: Jobs, curate: Curate) -> None:
        told = curate("page", jobs["failed"], "--json").json
        assert told["head"]["state"] == "failed"
        assert told["head"]["shards"]["done"] == 3

    def test_it_is_opened(self, jobs: Jobs, curate: Curate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", lambda uri: bool(opened.append(uri)) or True)
        curate("page", jobs["finished"], "--output", str(tmp_path / "a b.html"), "--open")
        assert opened == [f"file://{tmp_path}/a%20b.html"]

    def test_no_job(self, curate: Curate, tmp_path: Path) -> None:
        printed = curate("page", str(tmp_path))
        assert (printed.code, "no curate job" in printed.err) == (2, True)
