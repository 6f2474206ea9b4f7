# SPDX-License-Identifier: Apache-2.0
"""The real build: cargo, a release, its connectomes and its PTX."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flyops.domain import manifest, ptx, version
from flyops.errors import UsageError
from flyops.operations import build, connectome, release
from flyops.operations import ptx as ptx_operation

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_a_release_holds_what_its_name_says(flysim_release):
    said = subprocess.run([str(flysim_release.binary), "--version"], capture_output=True, text=True, check=True).stdout
    linked = subprocess.run(["ldd", str(flysim_release.binary)], capture_output=True, text=True, check=True).stdout

    assert flysim_release.version in said.split()
    assert version.parse(flysim_release.version) == build.current_version(build.features_wanted(cuda=False))
    assert "cuda" not in linked
    assert not manifest.differences(flysim_release.manifest, release.hashes(flysim_release.folder))
    assert release.open_tar(flysim_release.tar).manifest == flysim_release.manifest


def test_no_path_of_the_builder_is_in_the_binary(flysim_release):
    assert str(Path.home() / ".cargo").encode() not in flysim_release.binary.read_bytes()
    assert str(ROOT).encode() not in flysim_release.binary.read_bytes()


def test_a_second_build_asks_no_compiler(flysim_release, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    started = time.monotonic()

    again = build.build()

    print(f"second build {time.monotonic() - started:.2f} s")
    assert (again.version, again.fresh) == (flysim_release.version, False)


@pytest.mark.parametrize(("present", "missing"), [("", "cargo"), ("cargo", "cc")])
def test_a_missing_tool_is_told_in_one_line(xdg, tmp_path, present, missing):
    tools = tmp_path / "bin"
    tools.mkdir()
    if present:
        (tools / present).symlink_to(shutil.which(present))
    environment = {**os.environ, "PATH": str(tools), "XDG_STATE_HOME": str(xdg)}

    done = subprocess.run(
        [sys.executable, str(ROOT / "fly"), "build"], capture_output=True, text=True, env=environment, check=False, stdin=subprocess.DEVNULL
    )

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2
    assert last.startswith(f"error: {missing} is missing, needed to build flysim")
    assert "--release" in last


@pytest.mark.parametrize(
    ("name", "neurons", "edges"), [("", 668, 10_431), ("circuit668", 668, 10_431), ("celegans", 448, 4_681), ("synth:1000:20000:7", 1000, 20_000)]
)
def test_a_connectome_by_name(flysim_release, name, neurons, edges):
    made = connectome.make(name, flysim_release.binary)

    assert (made.neurons, made.edges) == (neurons, edges)
    assert made.target_name == f"{made.name}-{made.sha256[:12]}.fly"
    assert connectome.make(str(made.path), flysim_release.binary).fingerprint == made.fingerprint


def test_the_licence_of_the_data_is_told(flysim_release):
    assert "CC BY-NC 4.0" in connectome.make("circuit668", flysim_release.binary).attribution


def test_a_damaged_connectome_and_an_unknown_name_are_refused(flysim_release, tmp_path):
    damaged = tmp_path / "brain.fly"
    whole = connectome.make("circuit668", flysim_release.binary).path.read_bytes()
    damaged.write_bytes(whole[:-100])

    with pytest.raises(UsageError, match="not a connectome that this flysim takes"):
        connectome.make(str(damaged), flysim_release.binary)
    with pytest.raises(UsageError, match="circuit668, celegans, synth"):
        connectome.make("drosophila", flysim_release.binary)


@pytest.mark.parametrize(("arch", "isa"), [("sm_75", (8, 0)), ("sm_90", (8, 0)), ("sm_120", (8, 7))])
def test_ptx_is_built_for_the_arch_with_the_oldest_compiler_that_knows_it(monkeypatch, arch, isa):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)  # also where there is an nvcc

    made = ptx_operation.build(arch, "580")

    assert ptx.header(made.text) == ptx.Header(isa, arch)
    assert ptx.problems(made.text, arch, "580") == []


def test_ptx_that_the_driver_does_not_read_is_refused(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)

    with pytest.raises(ptx_operation.PtxError, match=r"driver 535 reads up to 8\.2, found 8\.7"):
        ptx_operation.build("sm_120", "535")


def test_a_compiler_too_new_for_the_driver_gives_way_to_nvrtc(monkeypatch, tmp_path, xdg):
    """An nvcc that writes ISA 9.9 stands in for tomorrow's toolkit: real files, a real process, refused by its own words."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf ".version 9.9\\n.target sm_90\\n" > "$2"\n')
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    made = ptx_operation.build("sm_90", "535")

    assert made.tool == "nvrtc 12.0"
    assert made.isa == "8.0"
    assert ptx_operation.build("sm_90").tool == "nvcc"  # with no driver to please it is taken


def test_the_compiler_leaves_our_locale_alone(xdg):
    """NVRTC changes the locale of the thread that calls it; texts read afterwards would be ASCII."""
    before = locale.getpreferredencoding(False)

    ptx_operation.build("sm_75")

    assert locale.getpreferredencoding(False) == before == "UTF-8"
