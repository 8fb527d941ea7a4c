"""`curate serve`: pages for a browser on this machine, and for nobody else; nothing is changed."""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, RemoteDisconnected
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import quote

import pytest
import structlog

from curate.errors import ConfigError
from curate.observe import registry
from curate.pages.server import PageServer
from tests.cli.running import Curate, curate
from tests.pages.samples import HOSTILE, NOW
from tests.support.fakes import FakeClock

__all__ = ["curate"]

Jobs = dict[str, str]
Ask = Callable[..., tuple[HTTPResponse, str]]


@contextmanager
def serving(*outputs: str) -> Iterator[Ask]:
    """Serves jobs while the block lasts; yields what asks for an address."""
    with PageServer(outputs, 0, FakeClock(NOW)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def ask(address: str, *, method: str = "GET", host: str = "") -> tuple[HTTPResponse, str]:
            connection = HTTPConnection("127.0.0.1", server.port)
            connection.request(method, address, headers={"Host": host or f"localhost:{server.port}"})
            answer = connection.getresponse()
            return answer, answer.read().decode()

        try:
            yield ask
        finally:
            server.shutdown()
            thread.join()


def test_one_job_is_at_the_root(jobs: Jobs) -> None:
    with serving(jobs["finished"]) as ask:
        answer, text = ask("/")
        assert (answer.status, answer.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
        assert "All 4 shards are done." in text
        assert answer.getheader("Refresh") is None
        head, nothing = ask("/", method="HEAD")
        assert (head.status, nothing) == (200, "")


def test_a_job_that_runs_is_asked_for_again(jobs: Jobs) -> None:
    with serving(jobs["running"]) as ask:
        assert ask("/")[0].getheader("Refresh") == "15"


def test_several_jobs_are_listed(jobs: Jobs) -> None:
    with serving(jobs["finished"], jobs["hostile"]) as ask:
        _, text = ask("/")
        links = re.findall(r'href="(/job\?output=[^"]*)"', text)
        assert len(links) == 2
        assert [ask(link)[0].status for link in links] == [200, 200]


def test_a_job_that_is_given_twice_is_served_once(jobs: Jobs) -> None:
    """A monitor refuses all numbers if one of a job comes twice."""
    with serving(jobs["finished"], jobs["hostile"], f"{jobs['finished']}/") as ask:
        numbers = [line.rpartition(" ")[0] for line in ask("/metrics")[1].splitlines() if not line.startswith("#")]
        assert len(numbers) == len(set(numbers)) > 0
    with serving(jobs["finished"], jobs["finished"]) as ask:
        assert "All 4 shards are done." in ask("/")[1]


def test_what_is_no_address_is_answered(jobs: Jobs) -> None:
    with serving(jobs["finished"]) as ask:
        assert ask("http://[::1/")[0].status == 400


def test_all_known_jobs_are_listed(jobs: Jobs, tmp_path: Path) -> None:
    registry.register(jobs["failed"], "poisoned", "run", NOW)
    registry.register(str(tmp_path / "gone"), "gone-job", "run", NOW)
    with serving() as ask:
        _, text = ask("/")
        assert ">failed<" in text
        assert ">gone<" in text
        assert ask(f"/job?output={quote(jobs['failed'], safe='')}")[0].status == 200
        assert ask(f"/job?output={quote(str(tmp_path / 'gone'), safe='')}")[0].status == 404


class TestNobodyElse:
    """It lets nobody in from elsewhere."""

    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost", "127.0.0.1.evil.example:80"])
    def test_another_host_is_refused(self, jobs: Jobs, host: str) -> None:
        with serving(jobs["finished"]) as ask:
            for address in ("/", "/metrics", "/healthz"):
                answer, text = ask(address, host=host)
                assert answer.status == 403
                assert jobs["finished"] not in text

    def test_what_is_not_listed_is_not_read(self, jobs: Jobs, tmp_path: Path) -> None:
        with serving(jobs["finished"], jobs["failed"]) as ask:
            for output in (jobs["hostile"], str(tmp_path), "/etc", ""):
                assert ask(f"/job?output={quote(output, safe='')}")[0].status == 404
            assert ask("/../../etc/passwd")[0].status == 404
            assert ask("/" + quote(HOSTILE))[1].count("<script>") == 1

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
    def test_it_takes_nothing(self, jobs: Jobs, method: str) -> None:
        with serving(jobs["finished"]) as ask:
            assert ask("/", method=method)[0].status == 501

    def test_it_listens_on_this_machine_alone(self, jobs: Jobs) -> None:
        with PageServer([jobs["finished"]], 0, FakeClock(NOW)) as server:
            assert server.server_address[0] == "127.0.0.1"

    def test_its_answers_allow_no_network_and_no_frame(self, jobs: Jobs) -> None:
        with serving(jobs["finished"]) as ask:
            answer, _ = ask("/")
            policy = answer.getheader("Content-Security-Policy") or ""
            assert policy.startswith("default-src 'none'")
            assert policy.endswith("frame-ancestors 'none'")
            assert answer.getheader("X-Content-Type-Options") == "nosniff"


def test_a_browser_leaves_out_the_port_of_http(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only that one: names without a port are of no other server of this machine."""
    with serving(jobs["finished"]) as ask:
        for port, status in ((-1, 403), (ANY, 200)):
            monkeypatch.setattr("curate.pages.server.HTTP_PORT", port)
            found = [ask("/healthz", host=one)[0].status for one in ("localhost", "127.0.0.1", "evil.example")]
            assert found == [status, status, 403]


@pytest.mark.parametrize(
    ("error", "said"),
    [(ConnectionResetError(), 0), (BrokenPipeError(), 0), (ValueError("what"), 1)],
)
def test_a_browser_that_goes_away_is_no_error(
    jobs: Jobs, error: Exception, said: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And of what is one, a line is said."""
    done = threading.Event()

    def fails(*_: Any) -> None:
        raise error

    def handled(server: PageServer, *given: Any) -> None:
        real(server, *given)
        done.set()

    real = PageServer.handle_error
    monkeypatch.setattr(PageServer, "handle_error", handled)
    monkeypatch.setattr("curate.pages.server._Handler._answer", fails)
    with serving(jobs["finished"]) as ask, structlog.testing.capture_logs() as logs:
        with pytest.raises(RemoteDisconnected):
            ask("/healthz")
        assert done.wait(60)
    assert [one["error"] for one in logs] == ["ValueError: what"] * said
    assert capsys.readouterr().err == ""


def test_metrics(jobs: Jobs) -> None:
    """In the format of OpenMetrics: each family with its type before its samples, and an end."""
    with serving(jobs["failed"], jobs["running"]) as ask:
        answer, text = ask("/metrics")
    assert (answer.getheader("Content-Type") or "").startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    about = f'job="poisoned",output="{jobs["failed"]}"'
    assert f'curate_shards{{{about},state="done"}} 3' in text
    assert f'curate_shards{{{about},state="failed"}} 1' in text
    assert f'curate_running{{job="toxicity",output="{jobs["running"]}"}} 1' in text
    known = set()
    for line in text.splitlines()[:-1]:
        if found := re.fullmatch(r"# (TYPE|HELP) (\w+) .+", line):
            known.add(found[2])
        else:
            assert re.fullmatch(r'(\w+)\{(\w+="([^"\\]|\\.)*",?)+\} [\d.e+-]+', line)
            assert line.partition("{")[0] in known


def test_health(jobs: Jobs) -> None:
    with serving(jobs["finished"]) as ask:
        assert ask("/healthz")[1] == "ok\n"
        assert ask("/favicon.ico")[0].status == 204


def test_a_damaged_job_has_its_page(jobs: Jobs, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(jobs["failed"], tmp_path / "copy"))
    (copy / "_curate" / "job.json").write_text("{")
    with serving(str(copy)) as ask:
        answer, text = ask("/")
        assert answer.status == 200
        assert "is not JSON" in text


def test_a_port_that_is_taken(jobs: Jobs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another: port="):
        PageServer([jobs["finished"]], taken.getsockname()[1], FakeClock(NOW))


def test_the_command_refuses_what_is_no_job(curate: Curate, tmp_path: Path) -> None:
    printed = curate("serve", str(tmp_path), "--port", "0")
    assert (printed.code, "no curate job" in printed.err) == (2, True)
