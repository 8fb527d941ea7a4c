"""scripts/cluster: what it refuses and how, what it sends, how it follows a job, the commands of Ray that it runs."""

from __future__ import annotations

import asyncio
import importlib.machinery
import importlib.util
import io
import itertools
import json
import os
import select
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import assume, given
from hypothesis import strategies as st

from scripts.clusters import buckets, commands, connect, follow, package, parameters, submit, token, with_secrets
from scripts.clusters.connect import Api, ConnectionLost, Versions, agree, versions_of
from scripts.clusters.problems import ROOT, Refused
from scripts.clusters.submit import Submission
from tests.support.gcs_emulator import GcsEmulator
from tests.support.harness import write_files
from tests.support.ports import free_port

SCRIPT = ROOT / "scripts/cluster"
TOKEN = "ab" * 32
NO_URLS = (
    "file:///etc/passwd",
    "ray://head:10001",
    "http://",
    "http://u:p@head:8265",
    "http://[::1",
    "http://head:port",
    "http://head:99999",
)


def cluster(*words: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the script."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


class TestParameters:
    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("zone", "us-central2", "zone is 'us-central2'; expected a zone, such as us-central2-b"),
            ("bucket", "gs://b", "bucket is 'gs://b'; expected the name of a bucket, without gs://"),
            ("name", "Curate", "expected at most 22 lower case letters, digits and dashes"),
            ("name", "x" * 23, "expected at most 22 lower case letters"),
            ("image", "us-docker.pkg.dev/p/curate/node:1", "the tag follows from the lock file"),
            ("python", 3.11, "python is 3.11; expected a quoted minor version"),
            ("tpu_min", "4", "tpu_min is '4'; expected a whole number from 0 to 10,000"),
            ("tpu_min", True, "tpu_min is True; expected a whole number"),
            ("tpu_min", 65, "tpu_min is 65, more than tpu_max, 64"),
            ("tpu_cpus", 241, "tpu_cpus is 241, and a host of v4-8 has 240 CPUs"),
            ("tpu_type", "v4-16", "v4-16 is more than one host"),
            ("tpu_type", "v6e-8", "there is no v6e in us-central2-b"),
            ("cpu_cpus", 64, "cpu_cpus is 64, and n2-standard-32 has 32 CPUs"),
            ("head_machine", "n2-standard-7", "n2 machines have 2, 4, 8"),
            ("head_machine", None, "expected a machine type, such as n2-standard-8"),
            ("projekt", "p", "no parameter 'projekt'; did you mean 'project'?"),
        ],
    )
    def test_each_value_is_checked(self, tmp_path: Path, name: str, value: object, said: str) -> None:
        """Refused with the line, what was found and what was expected."""
        text = parameters.PARAMETERS.read_text()
        lines = text.splitlines()
        line = next((k for k, one in enumerate(lines) if one.startswith(f"{name}:")), len(lines))
        lines[line : line + 1] = [f"{name}: {json.dumps(value)}"]
        (tmp_path / "parameters.yaml").write_text("\n".join(lines))
        found, problems = parameters.read_parameters(tmp_path / "parameters.yaml")
        assert found is None
        assert any(said in one.text and one.line == line + 1 for one in problems), problems

    def test_each_is_needed(self, tmp_path: Path) -> None:
        """One that is left out is named."""
        values = yaml.safe_load(parameters.PARAMETERS.read_text())
        for name in values:
            rest = {key: value for key, value in values.items() if key != name}
            (tmp_path / "parameters.yaml").write_text(yaml.safe_dump(rest))
            found, problems = parameters.read_parameters(tmp_path / "parameters.yaml")
            assert found is None
            assert [one.text for one in problems] == [f"the parameter {name!r} is missing"]


class TestBuckets:
    @pytest.mark.parametrize(
        ("metadata", "inside"),
        [
            ({"location": "US-CENTRAL2", "locationType": "region"}, True),
            ({"location": "US-CENTRAL1", "locationType": "region"}, False),
            ({"location": "US", "locationType": "multi-region"}, False),
            ({"location": "NAM4", "locationType": "dual-region"}, False),
            ({"location": "US", "customPlacementConfig": {"dataLocations": ["US-CENTRAL2", "US-EAST1"]}}, True),
            ({}, False),
        ],
    )
    def test_outside_the_region(self, metadata: Mapping[str, Any], inside: bool) -> None:
        """Refused, unless it is allowed: then it is a warning."""
        refused, said = buckets.judge({"b": metadata}, "us-central2", allow_cross_region=False)
        assert (refused == []) is inside
        assert said == []
        allowed, warned = buckets.judge({"b": metadata}, "us-central2", allow_cross_region=True)
        assert allowed == []
        assert (warned == []) is inside
        assert all("--allow-cross-region" in one for one in refused)

    def test_soft_delete_is_a_warning(self) -> None:
        """With the days, and the command that ends it."""
        metadata = {"location": "US-CENTRAL2", "softDeletePolicy": {"retentionDurationSeconds": "604800"}}
        refused, (said,) = buckets.judge({"b": metadata}, "us-central2", allow_cross_region=False)
        assert refused == []
        assert "keeps what is removed for 7 days" in said
        assert "gcloud storage buckets update gs://b --clear-soft-delete" in said

    def test_what_cannot_be_looked_at_is_said_and_stops_nobody(self) -> None:
        """In time, also where no answer comes."""
        release = threading.Event()

        def metadata(name: str) -> Mapping[str, Any]:
            if name == "hangs":
                release.wait()
            raise PermissionError("no storage.buckets.get")

        found = buckets.look_at(["denied", "hangs"], metadata, deadline_s=0.2)
        release.set()
        refused, said = buckets.judge(found, "us-central2", allow_cross_region=False)
        assert refused == []
        assert "could not look at gs://denied (no storage.buckets.get)" in said[0]
        assert "could not look at gs://hangs (no answer within 0 s)" in said[1]

    def test_metadata_come_through_gcsfs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As Google's servers give them."""
        with GcsEmulator(("some-bucket",)).here(monkeypatch):
            assert buckets.fetch("some-bucket")["name"] == "some-bucket"
            found = buckets.look_at(["some-bucket", "none"], buckets.fetch)
        assert isinstance(found["none"], Exception)


class Dashboard:
    """A dashboard that answers as it is told, and asks for a token."""

    def __init__(self) -> None:
        self.versions = Versions.here()
        self.wants: str | None = TOKEN
        self.body: bytes | None = None
        self.redirect: str | None = None
        self.jobs: dict[str, Any] = {}
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code, value = owner.answer(self.path, self.headers.get("Authorization"))
                body = owner.body if owner.body is not None else json.dumps(value).encode()
                self.send_response(302 if owner.redirect else code)
                if owner.redirect:
                    self.send_header("Location", owner.redirect)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, header: str | None) -> tuple[int, Any]:
        if self.wants is not None and header is None:
            return 401, "Unauthorized"
        if self.wants is not None and header != f"Bearer {self.wants}":
            return 403, "Forbidden"
        if path == "/api/version":
            return 200, {"ray_version": self.versions.ray}
        if path == "/api/v0/cluster_metadata":
            return 200, {"data": {"pythonVersion": self.versions.python}}
        name = path.removeprefix("/api/jobs/")
        return (200, self.jobs[name]) if name in self.jobs else (404, "not found")


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    made = Dashboard()
    yield made
    made.server.shutdown()
    made.server.server_close()


class TestConnecting:
    def test_what_agrees_is_taken(self, dashboard: Dashboard) -> None:
        """The same Ray, the same minor version of Python."""
        agree(Versions.here(), versions_of(Api(dashboard.address, TOKEN)))
        agree(Versions("2.60.0", "3.11.7"), Versions("2.60.0", "3.11.9"))

    @pytest.mark.parametrize(
        ("there", "said"),
        [
            (Versions("2.59.1", "3.11.7"), "Ray is 2.60.0 here and 2.59.1 on the cluster: install"),
            (
                Versions("2.60.0", "3.12.1"),
                "Python is 3.11.7 here and 3.12.1 on the cluster: make .venv with Python 3.12",
            ),
        ],
    )
    def test_versions_that_differ_are_refused(self, there: Versions, said: str) -> None:
        with pytest.raises(Refused, match=said.replace(".", r"\.")) as refused:
            agree(Versions("2.60.0", "3.11.7"), there)
        assert "\n" not in refused.value.message

    @pytest.mark.parametrize(
        ("given", "said"),
        [(None, "needs a token, but none was found"), ("0" * 64, "rejects this token")],
    )
    def test_no_token_or_a_wrong_one(self, dashboard: Dashboard, given: str | None, said: str) -> None:
        """One line, with the next step, and without the token."""
        with pytest.raises(Refused, match=said) as refused:
            versions_of(Api(dashboard.address, given))
        assert "RAY_AUTH_TOKEN_PATH" in refused.value.message
        assert "\n" not in refused.value.message
        assert "0" * 64 not in refused.value.message

    def test_nobody_answers(self) -> None:
        with pytest.raises(
            Refused, match=r"no cluster answers at http://127.0.0.1:\d+ \(.*refused.*`scripts/cluster up"
        ):
            versions_of(Api(f"http://127.0.0.1:{free_port()}", None))

    def test_somebody_answers_who_says_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A port that takes connections and never answers costs the time limit, below five seconds a request."""
        assert 2 * connect.TIMEOUT_S < 10
        monkeypatch.setattr(connect, "TIMEOUT_S", 0.2)
        with socket.socket() as mute:
            mute.bind(("127.0.0.1", 0))
            mute.listen()
            with pytest.raises(Refused, match="no cluster answers"):
                versions_of(Api(f"http://127.0.0.1:{mute.getsockname()[1]}", None))

    @pytest.mark.quick(1)
    @pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
    def test_somebody_else_answers(self, dashboard: Dashboard, body: bytes) -> None:
        dashboard.body = body
        with pytest.raises(Refused, match="is not a Ray dashboard"):
            versions_of(Api(dashboard.address, TOKEN))

    def test_the_token_goes_nowhere_else(self, dashboard: Dashboard) -> None:
        """A redirect is an answer of somebody else, and is not followed."""
        heard: list[str | None] = []
        other = Dashboard()
        other.answer = lambda _, header: (200, heard.append(header))  # type: ignore[method-assign]
        dashboard.redirect = f"{other.address}/api/version"
        with pytest.raises(Refused, match="is not a Ray dashboard \\(status 302\\)"):
            versions_of(Api(dashboard.address, TOKEN))
        other.server.shutdown()
        other.server.server_close()
        assert heard == []

    @pytest.mark.parametrize(
        "address", ["file:///etc/passwd", "ray://head:10001", "http://", "http://u:p@head:8265", *NO_URLS]
    )
    def test_what_is_no_address(self, address: str) -> None:
        with pytest.raises(Refused, match="is not the address of a dashboard: expected http://HOST:8265"):
            connect.normal(address)

    @pytest.mark.slow
    def test_a_bucket_elsewhere_is_refused_before_anything_is_sent(self, dashboard: Dashboard, tmp_path: Path) -> None:
        """By `submit`, of all buckets that the command line names; the emulator's are in no region."""
        write_files(tmp_path, {"x.py": b""})
        words = (
            "submit",
            "--address",
            dashboard.address,
            "x.py",
            "--input",
            "gs://bucket/in",
            "--output",
            "gs://bucket/o",
        )
        with GcsEmulator() as emulator:
            ended = cluster(*words, cwd=tmp_path, RAY_AUTH_TOKEN=TOKEN, **emulator.environ)
        assert ended.returncode == 2, ended.stderr
        assert "gs://bucket is in an unknown place (region), and the cluster in us-central2" in ended.stderr
        assert "--allow-cross-region goes on all the same" in ended.stderr
        assert "$ ray" not in ended.stderr

    @pytest.mark.ci(2)
    @pytest.mark.slow
    @pytest.mark.quick(1)
    @pytest.mark.parametrize("case", ["nobody", "token", "ray", "python"])
    def test_in_one_line(self, dashboard: Dashboard, tmp_path: Path, case: str) -> None:
        """By the command line, with exit code 2; nothing was submitted."""
        address, given = dashboard.address, TOKEN
        match case:
            case "nobody":
                address = f"http://127.0.0.1:{free_port()}"
            case "token":
                given = "0" * 64
            case "ray":
                dashboard.versions = Versions("2.59.0", dashboard.versions.python)
            case "python":
                dashboard.versions = Versions(dashboard.versions.ray, "3.10.1")
        write_files(tmp_path, {"x.py": b""})
        ended = cluster("submit", "--address", address, "x.py", cwd=tmp_path, RAY_AUTH_TOKEN=given)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("error: ")
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert given not in ended.stderr

    @pytest.mark.parametrize("answers", [0, 1])
    def test_within_ten_seconds(self, monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
        """Also by whom nothing is heard, from the first request on, or after it."""
        waited_s: list[float] = []

        class Silent:
            def open(self, request: Any, timeout: float) -> Any:
                del request
                waited_s.append(timeout)
                if len(waited_s) > answers:
                    raise TimeoutError("timed out")
                return io.BytesIO(b'{"ray_version": "1"}')

        monkeypatch.setattr(connect, "build_opener", lambda *_: Silent())
        with pytest.raises(Refused):
            versions_of(Api("http://127.0.0.1:9", None))
        assert len(waited_s) == answers + 1
        assert sum(waited_s) < 10


class TestToken:
    def test_it_is_made_once_for_one_reader(self, tmp_path: Path) -> None:
        """256 bits that only this user may read; a second call leaves it as it is."""
        path = tmp_path / "a/auth_token"
        assert token.make_token(path)
        made = path.read_text()
        assert len(bytes.fromhex(made)) == 32
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not token.make_token(path)
        assert path.read_text() == made

    def test_a_link_is_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "auth_token").symlink_to(tmp_path / "elsewhere")
        assert not token.make_token(tmp_path / "auth_token")
        assert not (tmp_path / "elsewhere").exists()

    def test_it_is_there_whole_or_not_at_all(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who is interrupted before it is written leaves none, and the next one makes it."""
        path, fdopen = tmp_path / "auth_token", os.fdopen

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(token.os, "fdopen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            token.make_token(path)
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(token.os, "fdopen", fdopen)
        assert token.make_token(path)
        assert len(bytes.fromhex(path.read_text())) == 32

    def test_an_empty_one_is_refused(self, tmp_path: Path) -> None:
        """By who would bring it to nodes, and by who would send it."""
        path = tmp_path / "auth_token"
        path.write_text("\n")
        for use in (token.make_token, lambda where: token.token_of(token.with_token({}, where))):
            with pytest.raises(Refused, match="is empty; remove the file"):
                use(path)

    def test_whose_token_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The user's own environment first, then the cluster's file; none where the user says so."""
        path = tmp_path / "auth_token"
        path.write_text(TOKEN + "\n")
        monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
        assert token.token_of(token.with_token({}, path)) == TOKEN
        assert token.token_of(token.with_token({"RAY_AUTH_TOKEN": "mine"}, path)) == "mine"
        (tmp_path / "other").write_text("other")
        assert token.token_of(token.with_token({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}, path)) == "other"
        assert token.token_of(token.with_token({"RAY_AUTH_MODE": "disabled"}, path)) is None
        assert token.token_of(token.with_token({}, tmp_path / "none")) is None


class TestPackage:
    FILES: ClassVar = {
        ".gitignore": b"demo/\n*.bin\n",
        "jobs/x.py": b"x" * 10,
        "jobs/model.bin": bytes(1000),
        "demo/big": bytes(1000),
        "tests/test_x.py": b"t" * 10,
        "tests/e2e/test_y.py": b"t" * 10,
        ".git/objects/1": bytes(1000),
        ".venv/lib/y.py": bytes(1000),
        "jobs/__pycache__/x.pyc": bytes(1000),
        "sub/.gitignore": b"hidden\n",
        "sub/hidden": bytes(1000),
        "sub/seen": b"s",
    }

    def test_only_what_a_job_needs(self, tmp_path: Path) -> None:
        """Less what .gitignore names, also in folders below, and what no job needs."""
        found = package.package(write_files(tmp_path, self.FILES))
        assert set(found.sizes) == {".gitignore", "jobs/x.py", "sub/.gitignore", "sub/seen"}

    def test_it_is_what_ray_sends(self, tmp_path: Path) -> None:
        """The zip that Ray makes of the folder holds the same files."""
        import zipfile

        from ray._private.ray_constants import get_runtime_env_default_excludes
        from ray._private.runtime_env import packaging

        folder = write_files(tmp_path / "folder", self.FILES)
        target = tmp_path / "package.zip"
        excludes = [*get_runtime_env_default_excludes(), *package.EXCLUDES]
        packaging.create_package(str(folder), target, include_gitignore=True, excludes=excludes)
        with zipfile.ZipFile(target) as made:
            names = {name for name in made.namelist() if not name.endswith("/")}
        assert set(package.package(folder).sizes) == names

    def test_too_much_is_refused(self, tmp_path: Path) -> None:
        """With what is largest, and what to do."""
        files = {"jobs/x.py": b"x", "data/a/1": bytes(700_000), "data/a/2": bytes(700_000), "notes.txt": bytes(100_000)}
        found = package.package(write_files(tmp_path, files))
        package.limited(found, 2, "jobs/x.py")
        with pytest.raises(
            Refused, match=r"would take 1\.43 MiB .* limit is 1\.00 MiB; .* data/a/ \(1\.34 MiB\)"
        ) as refused:
            package.limited(found, 1, "jobs/x.py")
        assert ".gitignore" in refused.value.message

    def test_a_job_that_would_not_be_sent_is_refused(self, tmp_path: Path) -> None:
        found = package.package(write_files(tmp_path, {".gitignore": b"x.py", "x.py": b"x"}))
        with pytest.raises(Refused, match=r"x\.py would not be sent"):
            package.limited(found, 1, "x.py")

    def test_this_repository_is_small(self) -> None:
        """Its own jobs are submitted without a word about size."""
        found = package.package(ROOT)
        package.limited(found, package.LIMIT_MIB, "jobs/toxicity.py")
        assert submit.WRAPPER in found.sizes
        assert not any(name.startswith(("tests/", "infra/", "demo/")) for name in found.sizes)


class TestSubmission:
    @pytest.mark.parametrize("words", [("--output", "out"), ("--output=./out",), ("-o", "a/b"), ("-oout",)])
    def test_a_relative_output_is_refused(self, words: tuple[str, ...]) -> None:
        with pytest.raises(Refused, match=r"is relative: .* pass gs://BUCKET/PREFIX"):
            submit.checked(Submission("x.py", words))

    @pytest.mark.parametrize("words", [("--output", "gs://b/out"), ("-o", "/nfs/out"), ("--input", "out"), ()])
    def test_others_are_not(self, words: tuple[str, ...]) -> None:
        submit.checked(Submission("x.py", words))

    @given(st.text(min_size=1))
    def test_a_secret_itself_is_refused_and_not_repeated(self, value: str) -> None:
        """Whatever it is: only references are taken, and the message is that of any other value."""
        assume(not value.startswith("/"))
        messages = set[tuple[str, str]]()
        for word in (f"KEY={value}", "KEY=another"):
            with pytest.raises(ValueError, match="KEY is no reference") as alone:
                with_secrets.reference(word)
            with pytest.raises(Refused) as submitted:
                submit.checked(Submission("x.py", (), (word,), working_dir=str(ROOT)))
            messages.add((str(alone.value), str(submitted.value)))
        assert len(messages) == 1

    def test_secrets_are_references_in_the_command(self) -> None:
        """They are fetched on the head; nothing of the environment here is sent."""
        reference = "projects/p/secrets/key/versions/3"
        found = Submission("jobs/x.py", ("--key", "API_KEY"), (f"API_KEY={reference}",), ("/tests",), str(ROOT))
        submit.checked(found)
        command = found.command("http://head:8265", "x-1")
        assert command[command.index("--") + 1 :] == (
            *("python", "scripts/clusters/with_secrets.py", f"API_KEY={reference}", "--"),
            *("python", "jobs/x.py", "--key", "API_KEY"),
        )
        env = json.loads(command[command.index("--runtime-env-json") + 1])
        assert env == {"excludes": ["/tests"]}

    def test_the_command_gets_its_secrets(self, tmp_path: Path) -> None:
        """From a file here; its arguments and exit code pass through."""
        (tmp_path / "key").write_text("s3cret\n")
        show = "import os, sys; print(os.environ['KEY'], sys.argv[1:]); sys.exit(3)"
        words = [f"KEY={tmp_path}/key", "--", sys.executable, "-c", show, "--", "a b"]
        ended = subprocess.run([sys.executable, ROOT / submit.WRAPPER, *words], capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (3, "s3cret ['--', 'a b']\n")

    def test_a_secret_that_cannot_be_read_is_said(self, tmp_path: Path) -> None:
        """And the job does not start without it."""
        words = [f"KEY={tmp_path}/none", "--", "touch", str(tmp_path / "ran")]
        ended = subprocess.run([sys.executable, ROOT / submit.WRAPPER, *words], capture_output=True, text=True)
        assert ended.returncode == 1
        assert f"error: the secret KEY cannot be read from {tmp_path}/none" in ended.stderr
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            ({"name": "x", "payload": {}}, "it is empty"),
            ({"name": "x"}, "it is empty"),
            ({"payload": {"data": "YQBi"}}, "it has a NUL character"),
            ({"payload": {"data": "/w=="}}, "can't decode byte"),
        ],
    )
    def test_a_secret_that_no_variable_can_have_is_said(
        self, monkeypatch: pytest.MonkeyPatch, answer: Mapping[str, Any], said: str
    ) -> None:
        """In one line, which does not repeat it."""
        import google.auth
        import google.auth.transport.requests

        class Session:
            def __init__(self, *_: object) -> None:
                pass

            def get(self, *_: object, **__: object) -> Any:
                return SimpleNamespace(status_code=200, json=lambda: answer)

        monkeypatch.setattr(google.auth, "default", lambda **_: (None, None))
        monkeypatch.setattr(google.auth.transport.requests, "AuthorizedSession", Session)
        with pytest.raises(SystemExit, match=f"error: the secret KEY cannot be read from projects/.*{said}"):
            with_secrets.main(["KEY=projects/p/secrets/s/versions/1", "--", "true"])

    @pytest.mark.parametrize(
        ("state", "died", "code"),
        [
            ({"status": "SUCCEEDED", "driver_exit_code": 0}, False, 0),
            ({"status": "FAILED", "driver_exit_code": 1}, False, 1),
            ({"status": "FAILED", "driver_exit_code": 2}, False, 2),
            ({"status": "FAILED", "driver_exit_code": 3}, False, 3),
            ({"status": "FAILED", "driver_exit_code": 130}, False, 130),
            ({"status": "FAILED", "driver_exit_code": 137}, True, 1),
            ({"status": "FAILED", "driver_exit_code": -9}, True, 1),
            ({"status": "FAILED", "driver_exit_code": None, "error_type": "JOB_SUPERVISOR_ACTOR_DIED"}, True, 1),
            ({"status": "FAILED", "driver_exit_code": None, "error_type": "RUNTIME_ENV_SETUP_FAILURE"}, False, 1),
            ({"status": "STOPPED"}, False, 1),
            (None, True, 1),
        ],
    )
    def test_who_died_and_who_ended(self, state: Mapping[str, Any] | None, died: bool, code: int) -> None:
        """A driver that ended by itself would end so again; one that was ended goes on."""
        assert (submit.died(state), submit.exit_code(state)) == (died, code)


class Scripted:
    """A job on a cluster, played: its log in pieces, its states one by one, what breaks and when."""

    def __init__(self, states: list[Any], logs: list[list[Any]], reconnects: list[Any] | None = None) -> None:
        self.states = iter(states)
        self.logs = iter(logs)
        self.reconnects = iter(reconnects or [])
        self.connections = 0

    async def tail(self) -> AsyncIterator[str]:
        for piece in next(self.logs, []):
            if isinstance(piece, Exception):
                raise piece
            yield piece
        await asyncio.sleep(3600)

    def details(self) -> Mapping[str, Any] | None:
        found = next(self.states)
        if isinstance(found, Exception):
            raise found
        return None if found is None else {"status": found, "driver_exit_code": 0}

    def reconnect(self) -> None:
        self.connections += 1
        if isinstance(found := next(self.reconnects, None), Exception):
            raise found


def followed(source: Scripted, **given: Any) -> tuple[Mapping[str, Any] | None, str, list[str]]:
    """Follows a played job; returns its end, the log that was shown, and what was said."""
    shown: list[str] = []
    said: list[str] = []
    state = asyncio.run(follow.follow(source, shown.append, said.append, poll_s=0.01, **given))
    return state, "".join(shown), said


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "DRAIN_S", 0.05)
    monkeypatch.setattr(follow, "LONGEST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("_soon")
class TestFollowing:
    def test_to_the_end(self) -> None:
        """The whole log, and what became of the job."""
        state, shown, said = followed(Scripted(["RUNNING", "RUNNING", "SUCCEEDED"], [["one\n", "two\n"]]))
        assert (state, shown, said) == ({"status": "SUCCEEDED", "driver_exit_code": 0}, "one\ntwo\n", [])

    def test_a_connection_that_breaks_is_made_anew(self) -> None:
        """Each connection begins the log anew, in other pieces; every character is shown once."""
        logs = [["one\n", "tw"], ["on", "e\ntwo\nth"], ["one\ntwo\nthree\n"]]
        states = ["RUNNING", ConnectionLost("reset"), "RUNNING", ConnectionLost("reset"), "RUNNING", "SUCCEEDED"]
        source = Scripted(states, logs)
        state, shown, said = followed(source)
        assert shown == "one\ntwo\nthree\n"
        assert state is not None
        assert source.connections == 2
        assert said == ["connection lost (reset); the job continues; reconnecting"] * 2

    def test_a_log_that_breaks_is_read_anew(self) -> None:
        """Even where the job's state can be asked for all the time."""
        source = Scripted(["RUNNING"] * 3 + ["SUCCEEDED"], [["one\n", RuntimeError("closed")], ["one\ntwo\n"]])
        _, shown, said = followed(source)
        assert shown == "one\ntwo\n"
        assert said == ["connection lost (closed); the job continues; reconnecting"]

    def test_a_laptop_that_slept(self) -> None:
        """Time went on without this process: connections are made anew, as nothing would tell that they are dead."""
        source = Scripted(["RUNNING", "RUNNING", "SUCCEEDED"], [["one\n"], ["one\ntwo\n"]])
        ticks = iter([0.0, 0.0, 0.0, 3600.0, 3600.0, 3600.0, 3600.0, 3600.0, 3600.0])
        _, shown, said = followed(source, now=lambda: next(ticks))
        assert shown == "one\ntwo\n"
        assert said == ["connection lost (this machine slept); the job continues; reconnecting"]
        assert source.connections == 1

    def test_it_tries_for_as_long_as_it_takes(self) -> None:
        """A tunnel that cannot be made is tried again, and nothing is said twice."""
        refused = ConnectionLost("no tunnel")
        source = Scripted(["RUNNING", ConnectionLost("gone"), "SUCCEEDED"], [["a"], ["ab"]], [refused] * 5)
        _, shown, said = followed(source)
        assert shown == "ab"
        assert len(said) == 1
        assert source.connections == 6

    def test_a_log_that_cannot_be_opened_is_tried_less_and_less_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where only the job's state can be asked for: a proxy that lets no web socket through."""
        pauses: list[float] = []
        sleep = asyncio.sleep

        async def paused(delay: float, *given: object) -> None:
            pauses.append(delay)
            await sleep(0, *given)

        monkeypatch.setattr(follow, "LONGEST_PAUSE_S", 30.0)
        monkeypatch.setattr(follow.asyncio, "sleep", paused)
        source = Scripted(["RUNNING"] * 14 + ["SUCCEEDED"], [[OSError("refused")]] * 20)
        followed(source)
        assert pauses[:14] == [0, *(min(30.0, 0.01 * 2**k) for k in range(1, 14))]

    def test_a_cluster_that_does_not_know_the_job(self) -> None:
        """It was brought up anew: that is said by None."""
        state, shown, _ = followed(Scripted(["RUNNING", ConnectionLost("gone"), None], [["a"], []]))
        assert (state, shown) == (None, "a")

    @given(st.text(max_size=30), st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=4))
    def test_every_character_once(self, text: str, breaks: list[list[int]]) -> None:
        """However the log is cut into pieces and wherever connections end."""
        shown: list[str] = []
        log = follow._Log(shown.append)

        async def pieces(cuts: list[int], end: int) -> AsyncIterator[str]:
            edges = [0, *sorted(min(cut, end) for cut in cuts), end]
            for start, stop in itertools.pairwise(edges):
                yield text[start:stop]

        for cuts in breaks:
            asyncio.run(log.pump(pieces(cuts, min(len(text), max(cuts, default=0)))))
        asyncio.run(log.pump(pieces([], len(text))))
        assert "".join(shown) == text


class Recorded(commands.Shell):
    """Takes commands for done."""

    def __init__(self, answers: tuple[str, ...] = ()) -> None:
        """Fails with each of `answers` in turn; then all goes well."""
        super().__init__()
        self.ran: list[tuple[str, ...]] = []
        self._answers = list(answers)

    def ask(self, *words: str) -> tuple[int, str]:
        self.ran.append(words)
        return (1, self._answers.pop(0)) if self._answers else (0, "")


@pytest.mark.usefixtures("_soon")
class TestResubmitting:
    FOUND = Submission("jobs/x.py", ("--output", "gs://b/out"))

    def run(
        self, ends: list[Any], resubmit: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> tuple[int, Recorded, str]:
        states = iter(ends)
        monkeypatch.setattr(follow, "POLL_S", 0.01)

        class Ended(Scripted):
            def details(self) -> Mapping[str, Any] | None:
                found: Mapping[str, Any] | None = next(states)
                return found

        shell = Recorded()
        lines = iter(range(100))
        code = submit.submit_and_follow(
            self.FOUND,
            shell,
            "http://head:8265",
            lambda _: Ended([], [["log\n"]]),
            resubmit=resubmit,
            left=lambda output: f"{output}: look {next(lines)}",
        )
        return code, shell, capsys.readouterr().err

    def test_a_driver_that_died_goes_on(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Submitted again under another name, up to the number given; each time it is said what is left."""
        killed = {"status": "FAILED", "driver_exit_code": 137}
        done = {"status": "SUCCEEDED", "driver_exit_code": 0}
        code, shell, said = self.run([killed, None, done], 5, capsys, monkeypatch)
        assert code == 0
        names = [one[one.index("--submission-id") + 1] for one in shell.ran]
        assert len(set(names)) == 3
        assert {one[one.index("--") + 1 :] for one in shell.ran} == {("python", "jobs/x.py", "--output", "gs://b/out")}
        assert "the driver died (exit code 137); submitting it again (1 of 5)" in said
        assert "the cluster no longer knows the job); submitting it again (2 of 5)" in said
        assert [f"look {k}" in said for k in range(4)] == [True, True, True, False]

    def test_only_so_often(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """After that it is said how to go on, and what is left."""
        killed = {"status": "FAILED", "driver_exit_code": -9}
        code, shell, said = self.run([killed] * 3, 2, capsys, monkeypatch)
        assert (code, len(shell.ran)) == (1, 3)
        assert "the same command resumes" in said
        assert said.rstrip().endswith("look 3")

    @pytest.mark.parametrize("code", [1, 2, 3])
    def test_a_driver_that_ended_by_itself_is_not(
        self, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Failed shards, a refusal: its exit code is this command's."""
        found, shell, _ = self.run([{"status": "FAILED", "driver_exit_code": code}], 5, capsys, monkeypatch)
        assert (found, len(shell.ran)) == (code, 1)

    @pytest.mark.parametrize("answer", ["RuntimeError: no", f"x {submit.TAKEN}"])
    def test_what_ray_refuses_ends_it(self, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Nothing is followed that was not submitted, and what Ray said is shown."""
        assert self.refused((answer,)) == 1
        assert answer in capsys.readouterr().err

    def test_a_head_that_starts_no_jobs_yet(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same job again under the same name, whose first attempt may have come through."""
        monkeypatch.setattr(follow, "POLL_S", 0.01)
        for answers in ((submit.NO_AGENT,) * 3, (submit.NO_AGENT, f"id {submit.TAKEN}")):
            shell = Recorded(answers)
            job = Scripted(["SUCCEEDED"], [["log\n"]])
            assert submit.submit_and_follow(self.FOUND, shell, "http://h", lambda _, job=job: job, left=str) == 0
            assert len(set(shell.ran)) == 1
            assert capsys.readouterr().err.count("does not start jobs yet") == 1

    def test_a_head_that_never_starts_jobs(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It is said where to look."""
        assert self.refused((submit.NO_AGENT,) * 100, submit.ATTEMPTS) == 1
        assert "dashboard_agent.log" in capsys.readouterr().err

    def refused(self, answers: tuple[str, ...], attempts: int = 1) -> int:
        shell = Recorded(answers)

        def never(_: str) -> Any:
            raise AssertionError("followed")

        code = submit.submit_and_follow(self.FOUND, shell, "http://h", never, resubmit=3, left=lambda _: "")
        assert len(shell.ran) == attempts
        return code


class TestLeft:
    def test_nothing_yet(self, tmp_path: Path) -> None:
        assert submit.left(str(tmp_path / "out")).startswith(f"nothing to resume at {tmp_path}/out (")

    def test_some(self, tmp_path: Path) -> None:
        """In shards, from the output alone."""
        from jobs.quality import Quality

        write_files(tmp_path / "in", {f"{k}.jsonl": b'{"id": "1", "text": "some words"}\n' for k in range(3)})
        Quality().run(input=str(tmp_path / "in"), output=str(tmp_path / "out"), backend="inline", limit=1)
        assert submit.left(str(tmp_path / "out")).endswith("1 of 3 shards done, 2 left")


@pytest.mark.ci(3)
@pytest.mark.slow
@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("up", "--yes"), "ray up infra/cluster.yaml --no-config-cache --yes"),
        (("up", "--no-restart"), "ray up infra/cluster.yaml --no-config-cache --no-restart"),
        (("down",), "ray down infra/cluster.yaml"),
        (("status",), "ray exec infra/cluster.yaml 'ray status --verbose'"),
        (("attach",), "ray attach infra/cluster.yaml"),
        (("exec", "df", "-h"), "ray exec infra/cluster.yaml 'df -h'"),
        (("monitor",), "ray monitor infra/cluster.yaml"),
        (("dashboard", "--port", "9000"), "ray dashboard infra/cluster.yaml --port 9000"),
        (("logs", "--address", "http://h:1", "x-1"), "ray job logs --address http://h:1 x-1"),
        (("logs", "-f", "--address", "h:1", "x-1"), "ray job logs --address http://h:1 --follow x-1"),
        (("stop", "--address", "http://h:1", "x-1"), "ray job stop --address http://h:1 x-1"),
    ],
)
def test_a_dry_run_prints_rays_commands(words: tuple[str, ...], shown: str, tmp_path: Path) -> None:
    """And nothing else: no cloud, no cluster, no token is touched. What is printed, a shell takes."""
    ended = cluster("--dry-run", *words, HOME=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (0, f"$ {shown}\n"), ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_command_that_is_printed_is_rays() -> None:
    """Ray's command line knows the commands and options: it is asked for help with them."""
    from click.testing import CliRunner
    from ray.scripts.scripts import cli

    for words in (
        ["up"],
        ["down"],
        ["exec"],
        ["attach"],
        ["monitor"],
        ["dashboard"],
        ["job", "submit"],
        ["job", "logs"],
    ):
        found = CliRunner().invoke(cli, [*words, "--help"])
        assert found.exit_code == 0, words
        if words == ["up"]:
            assert {"--no-config-cache", "--no-restart", "--yes"} <= set(found.output.split())
        if words == ["job", "submit"]:
            given = Submission("x.py", ()).command("a", "n")
            options = {word for word in given if word.startswith("--") and word != "--"}
            assert all(option in found.output for option in options)


@pytest.mark.slow
def test_a_dry_run_of_submit() -> None:
    """One command, which names the job as it was given."""
    words = ("--input", "gs://b/*.gz", "--output", "gs://b/out", "--threshold=0.7")
    ended = cluster("--dry-run", "submit", "--address", "http://h:1", "jobs/toxicity.py", "--", *words)
    (line,) = ended.stdout.splitlines()
    found = shlex.split(line.removeprefix("$ "))
    assert found[:3] == ["ray", "job", "submit"]
    assert found[found.index("--") + 1 :] == ["python", "jobs/toxicity.py", *words]


@pytest.mark.slow
def test_the_examples_project_is_brought_up_nowhere(tmp_path: Path) -> None:
    """Ray would try to create it."""
    ended = cluster("up", "--yes", HOME=str(tmp_path))
    assert ended.returncode == 2
    assert "set `project` in infra/parameters.yaml, then scripts/cluster render" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_file_with_a_typo_is_brought_up_nowhere(tmp_path: Path) -> None:
    """`up` checks first: the line is said, and Ray is not called."""
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "infra/cluster.yaml").read_text().replace("max_workers: 64\nup", "max_wokers: 64\nup"))
    ended = cluster("--file", str(path), "up", "--yes", HOME=str(tmp_path))
    assert ended.returncode == 2
    assert f"{path}:6: unknown field 'max_wokers'; did you mean 'max_workers'?" in ended.stderr
    assert "$ ray" not in ended.stderr


def test_a_file_for_kubernetes_is_for_kubectl(tmp_path: Path) -> None:
    ended = cluster("--file", "infra/kuberay.yaml", "--dry-run", "up", HOME=str(tmp_path))
    assert ended.returncode == 2
    assert "for Kubernetes: kubectl apply -f" in ended.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluster_name: [no, name\n", "mine.yaml:2: no YAML"),
        ("kind: RayCluster\n", "mine.yaml is not a file for `ray up`; for Kubernetes: kubectl apply -f"),
        (None, "mine.yaml:1: cannot be read: No such file"),
    ],
)
def test_a_file_that_ray_cannot_read_is_given_to_no_command(tmp_path: Path, text: str | None, said: str) -> None:
    """Of a line and the next step, in place of a traceback of Ray's."""
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_text(text)
    for words in (["down"], ["status"], ["exec", "ls"], ["attach"], ["monitor"], ["dashboard"], ["logs", "x"]):
        ended = invoke("--dry-run", "--file", str(path), *words)
        assert (ended.exit_code, ended.output.count("\n")) == (2, 1), ended.output
        assert said in ended.output


def test_check_looks_at_the_file_that_is_named(tmp_path: Path) -> None:
    """By --file as behind `check`; behind it, those alone."""
    path = tmp_path / "mine.yaml"
    path.write_text("cluster_name: [no, name\n")
    for words in (["--file", str(path), "check"], ["check", str(path)], ["--file", "other.yaml", "check", str(path)]):
        ended = invoke(*words)
        assert ended.exit_code == 2
        assert ended.output.startswith(f"{path}:2: no YAML")
        assert ended.output.count("\n") == 1


def test_a_dry_run_of_render_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_text", lambda *_: pytest.fail("written"))
    ended = invoke("--dry-run", "render")
    assert (ended.exit_code, ended.output.count("is as it was")) == (0, 3), ended.output


@pytest.mark.parametrize("limit", ["nan", "inf", "-1"])
def test_a_limit_is_a_number(limit: str) -> None:
    ended = invoke("submit", "--limit-mib", limit, "jobs/toxicity.py")
    assert ended.exit_code == 2
    assert "--limit-mib" in ended.output


def invoke(*words: str) -> Result:
    """Runs the script in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
        patch.setenv("RAY_AUTH_MODE", "disabled")
        loader = importlib.machinery.SourceFileLoader("cluster_script", str(SCRIPT))
        spec = importlib.util.spec_from_loader("cluster_script", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "cluster_script", module)
        loader.exec_module(module)
        patch.setattr(module.endings, "in_order", lambda: None)
        return CliRunner().invoke(module.main, words)


@pytest.mark.slow
def test_check_says_ok() -> None:
    """Of all files of the repository."""
    ended = cluster("check", "--offline")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_command_has_started_ends_with_it(number: signal.Signals) -> None:
    """As the ssh of `ray dashboard` does, which would keep the port: a signal may be for this process alone."""
    program = """
import subprocess
import endings
from clusters.commands import Shell

class Command(subprocess.Popen):
    def wait(self, *given):
        subprocess.Popen = Command.__base__
        print("waits", flush=True)
        return super().wait(*given)

subprocess.Popen = Command
endings.in_order()
Shell().run("sh", "-c", "sh -c 'sleep 600 & echo up; wait' & wait")
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT / "scripts", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {b"up\n", b"waits\n"}
        process.send_signal(number)
        # They have it too, and it ends with the last of them.
        assert select.select([process.stdout], [], [], 30)[0]
        assert process.stdout.read() == b"waits\n"
    assert process.returncode == 128 + number


def test_a_tunnel_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The last line that `ray dashboard` printed says why; nothing is left running."""
    stand_in = tmp_path / "ray"
    stand_in.write_text("#!/bin/sh\necho trying\necho no head node found\nexit 1\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(commands, "ray_command", lambda: str(stand_in))
    monkeypatch.setattr(commands.tempfile, "tempdir", str(tmp_path))
    tunnel = commands.Tunnel(commands.Shell(), "infra/cluster.yaml")
    with pytest.raises(ConnectionLost, match="made no tunnel: no head node found"):
        tunnel.open()
    assert list(tmp_path.iterdir()) == [stand_in]


def test_a_tunnel_that_was_never_opened_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a dry run, or where the command is refused."""
    monkeypatch.setattr(commands.tempfile, "tempdir", str(tmp_path))
    commands.Tunnel(commands.Shell(), "infra/cluster.yaml").close()
    assert list(tmp_path.iterdir()) == []


def test_a_tunnel_is_made_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """At the same port: what went through the old one finds the new one."""
    stand_in = tmp_path / "ray"
    serve = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[-1]))"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{serve}" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(commands, "ray_command", lambda: str(stand_in))
    monkeypatch.setattr(commands.tempfile, "tempdir", str(tmp_path))
    tunnel = commands.Tunnel(commands.Shell(), "infra/cluster.yaml")
    pids = []
    try:
        for _ in range(2):
            tunnel.open()
            assert tunnel._process is not None
            pids.append(tunnel._process.pid)
    finally:
        tunnel.close()
    assert list(tmp_path.iterdir()) == [stand_in]
    assert len(set(pids)) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    "name",
    ["connect", "problems", "shapes", "lock", "kuberay", "buckets", "submit", "with_secrets", "parameters", "render"],
)
def test_examples(name: str) -> None:
    """What docstrings show is so."""
    import doctest
    import importlib

    found = importlib.import_module(f"scripts.clusters.{name}")
    assert doctest.testmod(found).failed == 0
