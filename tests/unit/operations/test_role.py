# SPDX-License-Identifier: Apache-2.0
"""The tag gate in throwaway repositories with a real git: what passes, what is refused, and in which words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flyops.domain import role as rules
from flyops.domain.manifest import Manifest
from flyops.errors import Refused, UsageError
from flyops.executor.run import HostResult, RunResult
from flyops.loading.inventory import Inventory
from flyops.operations import deploy, hosts, role
from flyops.operations.options import DeployOptions, Target
from flyops.operations.release import Release


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A repository with one commit; the user's own configuration of git does not count."""
    for name, value in (("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null"), ("HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "t")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")

    def run(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path / "r"), *words], check=True, capture_output=True)

    (tmp_path / "r").mkdir()
    run("init", "-q", "-b", "main")
    (tmp_path / "r/file").write_text("1\n")
    run("add", "file")
    run("commit", "-q", "-m", "one")
    return run


def chosen(**variables: Any) -> hosts.Hosts:
    made = Inventory()
    made.add_host("dev1", [], {"ansible_connection": "local", "fly_role": "release", "fly_prerelease": False, **variables})
    return hosts.Hosts(made, "", {}, Target())


def asked(tmp_path: Path, tarball: str = "", **variables: Any) -> str:
    return role.gate(chosen(**variables), tarball, tmp_path / "r")


def refused(tmp_path: Path, tarball: str = "", **variables: Any) -> str:
    with pytest.raises(Refused) as err:
        asked(tmp_path, tarball, **variables)
    assert err.value.exit_code == 3 and "dev1: fly_role is release" in str(err.value) and "Nothing was changed" in str(err.value.fix)
    return str(err.value)


def looks(monkeypatch: pytest.MonkeyPatch, current: str) -> None:
    seen = RunResult({"dev1": HostResult("dev1", vars={"release_now": {"current": current}})})
    monkeypatch.setattr(hosts, "play", lambda *words, **options: seen)


def test_untagged(git: Callable[..., None], tmp_path: Path) -> None:
    assert "HEAD is not exactly at an annotated tag vX.Y.Z, found no tag" in refused(tmp_path)


def test_a_dev_host_takes_any_tree(git: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "r/file").write_text("2\n")
    assert asked(tmp_path, fly_role="dev") == ""


def test_tagged_and_clean_passes(git: Callable[..., None], tmp_path: Path) -> None:
    git("tag", "-a", "v9.9.9", "-m", "x")
    assert asked(tmp_path) == asked(tmp_path, "some.tar.gz") == "v9.9.9"


@pytest.mark.parametrize("how", ["changed", "new", "staged"])
def test_tagged_and_dirty(git: Callable[..., None], tmp_path: Path, how: str) -> None:
    git("tag", "-a", "v9.9.9", "-m", "x")
    name = "file" if how == "changed" else "other"
    (tmp_path / "r" / name).write_text("2\n")
    if how == "staged":
        git("add", name)
    said = refused(tmp_path)
    assert f"the tree is not clean: {name}" in said and "annotated tag" not in said.partition("to do")[0]


@pytest.mark.parametrize(
    ("tag", "found"),
    [(["v9.9.9"], "v9.9.9 (lightweight)"), (["-a", "9.9.9", "-m", "x"], "9.9.9 (annotated)"), (["-a", "v9.9.9-rc1", "-m", "x"], "v9.9.9-rc1")],
)
def test_tags_that_are_none(git: Callable[..., None], tmp_path: Path, tag: list[str], found: str) -> None:
    git("tag", *tag)
    assert f"not exactly at an annotated tag vX.Y.Z, found {found}" in refused(tmp_path)


def test_a_commit_behind_the_tag(git: Callable[..., None], tmp_path: Path) -> None:
    git("tag", "-a", "v9.9.9", "-m", "x")
    git("commit", "-q", "--allow-empty", "-m", "two")
    (tmp_path / "r/dirt").write_text("")
    said = refused(tmp_path)  # all that is wrong at once
    assert "found no tag" in said and "the tree is not clean: dirt" in said


def test_prerelease_without_a_tarball_on_an_empty_host(git: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, "")
    assert asked(tmp_path, fly_prerelease=True) == ""
    (tmp_path / "r/file").write_text("2\n")
    assert "the tree is not clean" in refused(tmp_path, fly_prerelease=True)


def test_prerelease_with_a_tarball_or_with_a_release_there(git: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "fly_prerelease does not go with --release" in refused(tmp_path, "some.tar.gz", fly_prerelease=True)
    looks(monkeypatch, "0.1.0-0123456789")
    assert "fly_prerelease is for hosts without a release, dev1 has one" in refused(tmp_path, fly_prerelease=True)


@pytest.mark.root
def test_a_foreign_owner_is_reported_as_such(git: Callable[..., None], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    git("tag", "-a", "v9.9.9", "-m", "x")
    for path in (tmp_path / "r", tmp_path / "r/.git"):
        os.chown(path, 4321, 4321)
    with pytest.raises(Refused, match="dubious ownership") as err:
        asked(tmp_path)
    assert "safe.directory" in err.value.fix and "not clean" not in str(err.value)


def test_no_repository_at_all(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    assert "git cannot tell what this checkout is: fatal: not a git repository" in refused(tmp_path)


def test_a_role_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dev1: fly_role is dev or release, found 'prod'"):
        asked(tmp_path, fly_role="prod")


@pytest.mark.parametrize(
    ("version", "sources", "wrong"),
    [
        ("0.1.0-aaaaaaaaaa", "0.1.0-aaaaaaaaaa", []),
        ("0.1.1-aaaaaaaaaa", "", ["expected a release of version 0.1.0 for the tag v0.1.0, found 0.1.1-aaaaaaaaaa"]),
        ("0.1.0-bbbbbbbbbb", "0.1.0-aaaaaaaaaa", ["expected the release of the tag's own sources, 0.1.0-aaaaaaaaaa, found 0.1.0-bbbbbbbbbb"]),
    ],
)
def test_the_release_is_the_tags(version: str, sources: str, wrong: list[str]) -> None:
    assert rules.version_problems("v0.1.0", version, sources) == wrong


def test_a_deploy_asks_both_before_it_plays_anything(flysim_release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tagged with another version than the tarball's: refused; with its own: goes on."""
    played: list[str] = []
    monkeypatch.setattr(hosts, "find", lambda target: chosen(fly_connectome="circuit668"))
    monkeypatch.setattr(hosts, "play", lambda found, playbook, **options: (played.append(playbook), RunResult({}))[1])  # type: ignore[func-returns-value]
    options = DeployOptions(release=str(flysim_release.tar))
    monkeypatch.setattr(role, "tree", lambda repository: rules.Tree(tags=(("v9.9.9", True),)))
    with pytest.raises(Refused, match=r"expected a release of version 9\.9\.9 for the tag v9\.9\.9"):
        deploy.run(options)
    assert played == []
    number = flysim_release.version.partition("-")[0]
    monkeypatch.setattr(role, "tree", lambda repository: rules.Tree(tags=((f"v{number}", True),)))
    assert deploy.run(options) == 0 and played == ["deploy"]
    other = replace(
        flysim_release, manifest=Manifest({**flysim_release.manifest.header, "version": f"{number}-bbbbbbbbbb"}), version=f"{number}-bbbbbbbbbb"
    )
    with pytest.raises(Refused, match="the tag's own sources"):
        role.gate_release(f"v{number}", other)
