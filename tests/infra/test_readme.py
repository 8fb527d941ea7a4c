"""infra/README.md says what is so: its commands exist, its parameters and files are there, its arithmetic is right."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader

import click
import pytest

from scripts.clusters.problems import ROOT
from scripts.clusters.render import INFRA, TEMPLATES

README = (INFRA / "README.md").read_text()


@pytest.fixture(scope="module")
def group() -> Iterator[click.Group]:
    """The command line of scripts/cluster."""
    sys.path.insert(0, str(ROOT / "scripts"))
    loader = SourceFileLoader("cluster_script", str(ROOT / "scripts/cluster"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    yield module.main
    del sys.modules[loader.name]
    sys.path.remove(str(ROOT / "scripts"))


def test_its_commands_exist(group: click.Group) -> None:
    """Each `scripts/cluster NAME`, and each option that is named with it."""
    found = re.findall(r"scripts/cluster ((?:--[-a-z]+ \S+ )?)([a-z]+)((?: --[-a-z]+)*)", README)
    named = {name for _, name, _ in found}
    assert named <= set(group.commands), named - set(group.commands)
    assert {
        "render",
        "check",
        "image",
        "up",
        "down",
        "status",
        "monitor",
        "dashboard",
        "attach",
        "exec",
        "submit",
    } <= named
    for before, name, after in found:
        for option in re.findall(r"--[-a-z]+", after):
            assert option in _options(group.commands[name]), (name, option)
        for option in re.findall(r"--[-a-z]+", before):
            assert option in _options(group), option
    for option in ("--secret", "--resubmit", "--limit-mib", "--exclude", "--allow-cross-region", "--address"):
        assert option in README
        assert option in _options(group.commands["submit"])


def test_every_command_is_told_of(group: click.Group) -> None:
    """A command that nobody reads of is not there."""
    for name in group.commands:
        assert re.search(rf"scripts/cluster {name}\b|`{name}", README), name


def test_from_a_laptop_to_a_finished_job_in_five_commands() -> None:
    """Counted."""
    section = README.partition("## From a laptop")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert len(section.strip().splitlines()) == 5


def test_its_files_are_there() -> None:
    """All that the first table names, and no other."""
    named = set(re.findall(r"^\| `([^`]+)` \|", README.partition("## From")[0], re.MULTILINE))
    assert named - {"templates/"} == {
        path.name
        for path in INFRA.iterdir()
        if path.is_file() and path.name not in ("README.md", "Dockerfile.dockerignore")
    }
    assert TEMPLATES.is_dir()


def test_its_arithmetic() -> None:
    """The sums of what the toxicity job costs."""
    shards, cpus, rate = 372_529, 64 * 120, 23e6
    assert f"{shards:,}" in README
    assert round(100e12 / 2**28) == shards
    assert f"{cpus:,} " in README
    assert f"{round(500e12 / rate / 3600, -1):,.0f} CPU hours; {500e12 / rate / shards:.0f} s a shard" in README
    assert f"| {500e12 / rate / cpus / 60:.0f} min |" in README
    assert f"100 TB / 25 GB/s = {100e12 / 25e9 / 60:.0f} min" in README
    assert f"{25 / 64:.2f} GB/s a host, {100e12 / 25e9 / shards * cpus:.0f} s a shard" in README
    assert f"64 × $5.60 × 1.3 h = **${64 * 5.6 * 1.3:.0f}**" in README
    assert f"12.7 × $0.40 + 0.37 × $5 = ${12.7 * 0.4 + 0.37 * 5:.0f}" in README
    assert f"{shards * 34 / 1e6:.1f} million" in README


def test_the_arithmetic_of_a_shuffle() -> None:
    """The sums of what 100 TB cost, in the units of the table."""
    files, merged, outputs, parts = 46_566, 74_451, 23_194, 153
    assert round(100e12 / 2**31) == files
    assert math.isqrt(outputs - 1) + 1 == parts
    assert f"{100e12 / outputs / 1e9:.1f} GB" in README
    ranges = files * 4 * parts / 1e6
    assert f"{files:,} × 4 × {parts} = {ranges:.1f} million of {100 / ranges:.1f} MB" in README
    reads, writes = 28.5 + 11.6 + 7.1 + 11.4, (files + merged + outputs) / 1e6
    assert f"{files + merged + outputs:,} writes: ${reads * 0.4 + writes * 5:.2f}" in README
    assert f"64 × $5.60 × 4.5 h = **${round(64 * 5.6 * 4.5, -1):,.0f}**" in README
    assert f"${(64 * 5.6 * 4.5 + reads * 0.4 + writes * 5) / 100:.2f} a TB" in README
    assert f"{(7.1 + 11.4) * 65_536 / 1e6:.1f} TB" in README
    assert f"300 + 60 + 15 = {300 + 60 + 15} TB" in README
    assert round(merged * 2**31 / 1e12) == 100 + 60
    assert f"375 TB / 25 GB/s, writes beside reads: **{375e12 / 25e9 / 3600:.1f} h**" in README
    measured = (ROOT / "scripts/README.md").read_text()
    row = re.search(
        r"^\| `--keys shuffle`, 100 TB \| (\S+) / (\S+) \|[^|]*\| (\S+): [^|]*\| (\d+) s", measured, re.MULTILINE
    )
    assert row is not None
    assert row.group(1, 2, 3) == (f"{files:,}", f"{merged:,}", f"{outputs:,}")
    assert f"to {row[4]} s and 1.6 GB" in README


def test_it_names_what_curate_may_delete() -> None:
    """The condition of the sweeping role is the ledger's folder."""
    from curate.ledger import layout

    assert f'extract("/objects/{{before}}/{layout.LEDGER}/")' in README


def test_every_binding_beside_a_conditional_one_says_its_condition() -> None:
    """Of a bucket or a project whose policy has a condition, `gcloud` asks for that of each further binding, and ends
    where nobody can answer."""
    text = README.replace("\\\n", " ")
    bindings = re.findall(r"gcloud (?:storage buckets|projects) add-iam-policy-binding .*", text)
    assert len(bindings) == 5
    assert [one for one in bindings if "--condition=" not in one] == []


def _options(command: click.Command) -> set[str]:
    return {option for one in command.params for option in one.opts}
