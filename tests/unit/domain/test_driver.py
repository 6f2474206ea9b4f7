# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import pytest

from flyops.domain import driver
from flyops.domain.driver import File, Seen

V = "570.148.08"
LIB = "/usr/lib/x86_64-linux-gnu"


def files(*names: str, size: int = 1, folder: str = LIB) -> tuple[File, ...]:
    return tuple(File(f"{folder}/{name}", "file", size) for name in names)


def link(name: str, final: str, size: int = 1) -> File:
    return File(f"{LIB}/{name}", "link", size, f"{LIB}/{final}" if final else "")


RIGHT = Seen(
    (*files(f"libcuda.so.{V}", f"libnvidia-ml.so.{V}"), link("libcuda.so.1", f"libcuda.so.{V}"), link("libnvidia-ml.so.1", f"libnvidia-ml.so.{V}"))
)


def with_files(*more: File) -> Seen:
    return dataclasses.replace(RIGHT, files=(*RIGHT.files, *more))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcuda.so.570.148.08", ("libcuda", "570.148.08")),
        ("/usr/lib/libcuda.so.550.135", ("libcuda", "550.135")),
        ("libcuda.so.1", ("libcuda", "1")),
        ("libcuda.so", ("libcuda", "")),
        ("libnvidia-pkcs11-openssl3.so.570.1.2", ("libnvidia-pkcs11-openssl3", "570.1.2")),
        ("libGLX_nvidia.so.0", ("libGLX_nvidia", "0")),
        ("libcudart.so.12.4.127", None),  # the toolkit's, not the driver's
        ("libnvidia-container.so.1.17.8", None),  # the container toolkit's
        ("libc.so.6", None),
        ("libcuda.so.570.148.08.bak", None),
        ("nvidia.ko", None),
    ],
)
def test_names_of_the_driver(name: str, expected: tuple[str, str] | None) -> None:
    assert driver.parts(name) == expected


def test_libraries_of_exactly_the_loaded_version() -> None:
    names = [
        "libcuda.so",
        "libcuda.so.1",
        f"libcuda.so.{V}",
        "libcuda.so.570.148.06",
        f"libnvidia-ml.so.{V}",
        f"libnvidia-glcore.so.{V}",
        "nvidia.ko",
    ]
    assert driver.driver_files(names, V) == (f"libcuda.so.{V}", f"libnvidia-ml.so.{V}")
    assert driver.driver_files(names, V, ("graphics",)) == (f"libnvidia-glcore.so.{V}",)
    assert driver.driver_files(names, "570.148") == ()
    assert driver.driver_files(names, "1") == ()
    assert driver.driver_files(names, "") == ()


CACHE = (
    "3 libs found in cache `/etc/ld.so.cache'\n"
    "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
    "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
    "\tlibcuda.so.1 (libc6, OS ABI: Linux 2.3.99) => /usr/lib32/libcuda.so.1\n"
    "\tlibcuda.so.1 (libc6,hard-float) => /usr/lib/arm-linux-gnueabihf/libcuda.so.1\n"
    "\tlibcuda.so.1 (libc6,AArch64) => /usr/lib/aarch64-linux-gnu/libcuda.so.1\n"
    "\tlibcuda.so (libc6,x86-64, OS ABI: Linux 3.2.0) => /srv/x/libcuda.so\n"
    "\tlibcudart.so.12 (libc6,x86-64) => /srv/libcudart.so.12\n"
)


def test_folders_of_the_linkers_cache_are_the_64_bit_ones() -> None:
    assert driver.library_folders(CACHE) == ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
    assert driver.library_folders(CACHE, ("libcuda.so",)) == ("/srv/x",)
    assert driver.library_folders("") == ()


@pytest.mark.parametrize(
    ("links", "path", "end"),
    [
        ({}, "/a/b", "/a/b"),
        ({"/a/b": "c"}, "/a/b", "/a/c"),
        ({"/a": "/z", "/z/b": "../c"}, "/a/b", "/c"),
        # Debian: the linker's name, the alternative, the versioned file
        (
            {
                f"{LIB}/libcuda.so.1": "/etc/alternatives/nvidia--libcuda.so.1",
                "/etc/alternatives/nvidia--libcuda.so.1": f"{LIB}/nvidia/current/libcuda.so.1",
                f"{LIB}/nvidia/current/libcuda.so.1": f"libcuda.so.{V}",
            },
            f"{LIB}/libcuda.so.1",
            f"{LIB}/nvidia/current/libcuda.so.{V}",
        ),
        ({"/a": "/b", "/b": "/a"}, "/a", ""),  # in a circle
        ({}, "/..", "/"),
    ],
)
def test_where_a_path_ends(links: dict[str, str], path: str, end: str) -> None:
    assert driver.real(path, lambda one: links.get(one, "")) == end


def test_all_right() -> None:
    found = driver.survey(RIGHT, V)
    assert (found.problems, found.verdict, found.versions) == ((), f"in lockstep with {V}", (V,))


@pytest.mark.parametrize(
    ("seen", "wanted", "verdict", "says"),
    [
        pytest.param(RIGHT, "570.148.06", f"driver/library version mismatch: module 570.148.06, libraries {V}", f"expected 570.148.06, found {V}", id="case-19"),
        pytest.param(RIGHT, "570.148", f"driver/library version mismatch: module 570.148, libraries {V}", "expected 570.148", id="case-19-cut-to-two-parts"),
        pytest.param(
            with_files(*files("libcuda.so.535.54.03")), V, f"leftovers of 535.54.03 beside {V}", "libcuda.so.535.54.03 is left over", id="case-21"
        ),
        pytest.param(
            with_files(*files("libnvoptix.so.535.54.03", folder="/usr/lib64")), V, f"leftovers of 535.54.03 beside {V}", "libnvoptix", id="case-21-graphics"
        ),
        pytest.param(with_files(*files("libcuda.so.580.1.2")), V, f"leftovers of 580.1.2 beside {V}", "libcuda.so.580.1.2", id="case-21-of-a-newer-one"),
        pytest.param(with_files(*files("libnvidia-nvvm.so.570.148.08", size=0)), V, "empty bind targets", "its bind was missing at start", id="empty-target"),
        pytest.param(
            Seen(tuple(dataclasses.replace(f, size=0) for f in RIGHT.files if f.kind == "file")), V, "empty bind targets", "found none", id="all-empty"
        ),
        pytest.param(with_files(link("libcuda.so", "libcuda.so.535.1")), V, "a SONAME leads to another version's file", "expected version", id="soname"),
        pytest.param(with_files(link("libcuda.so", "", 0)), V, "a SONAME leads to another version's file", "leads nowhere", id="dangling"),
        pytest.param(
            dataclasses.replace(RIGHT, linked={"libcuda.so.1": "/srv/old/libcuda.so.535.1", "libnvidia-ml.so.1": f"{LIB}/libnvidia-ml.so.{V}"}),
            V, "a SONAME leads to another version's file", "the linker takes /srv/old/libcuda.so.535.1", id="linker-takes-an-old-one",
        ),
        pytest.param(dataclasses.replace(RIGHT, linked={}), V, f"the linker does not know the libraries of {V}", "run ldconfig", id="not-in-the-cache"),
        pytest.param(Seen(files(f"libcuda.so.{V}")), V, f"libraries of {V} missing", "libnvidia-ml.so: expected", id="one-missing"),
        pytest.param(Seen(), V, f"libraries of {V} missing", "found none", id="none"),
        pytest.param(RIGHT, "", "driver not loaded", "no version to compare with", id="not-loaded"),
        pytest.param(
            dataclasses.replace(RIGHT, tools=(File("/usr/local/bin/nvidia-smi", "link", 0, "/usr/local/nvidia/bin/nvidia-smi"),)),
            V, "tools do not fit", "nvidia-smi leads nowhere", id="tool",
        ),
        pytest.param(
            dataclasses.replace(RIGHT, mountinfo=f"9 1 8:1 /lib/libcuda.so.{V}//deleted /usr/lib/libcuda.so.{V} ro - ext4 /dev/x rw\n"),
            V, "mounts predate an upgrade of the host", "works until this guest's next start", id="case-17",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(seen: Seen, wanted: str, verdict: str, says: str) -> None:
    found = driver.survey(seen, wanted)
    assert found.verdict == verdict
    assert any(says in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    "seen",
    [
        with_files(*files("libcudart.so.12.4", "libnvidia-container.so.1.17.8", "libc.so.6")),  # other people's libraries
        with_files(*files(f"libnvidia-glcore.so.{V}", f"libnvcuvid.so.{V}")),  # more capabilities than asked
        dataclasses.replace(RIGHT, linked={"libcuda.so.1": f"{LIB}/libcuda.so.{V}", "libnvidia-ml.so.1": f"{LIB}/libnvidia-ml.so.{V}"}),
        with_files(link("libGLX_nvidia.so.0", "", 0)),  # of a capability that nobody asked for
        dataclasses.replace(RIGHT, mountinfo=f"9 1 8:1 /lib/libcuda.so.{V} /usr/lib/libcuda.so.{V} ro - ext4 /dev/x rw\n"),
        dataclasses.replace(RIGHT, mountinfo="9 1 8:1 /tmp/a//deleted /srv/a rw - ext4 /dev/x rw\n"),  # a mount of somebody else's
    ],
)
def test_what_is_no_fault_raises_no_alarm(seen: Seen) -> None:
    assert driver.survey(seen, V).problems == ()


def test_case_17_mounts_of_the_driver() -> None:
    info = (
        "101 90 8:1 /lib/libcuda.so.1.2 /usr/local/nvidia/lib64/libcuda.so.1.2 ro,nodev - ext4 /dev/x rw\n"
        "102 90 8:1 /lib/libnvidia-ml.so.1.2//deleted /usr/lib/libnvidia-ml.so.1.2 ro,nodev - ext4 /dev/x rw\n"
        "103 90 8:1 /bin/nvidia-smi /usr/bin/nvidia-smi rw,nodev - ext4 /dev/x rw\n"
        "104 90 8:1 / / rw - ext4 /dev/x rw\nrubbish\n"
        "105 90 8:1 /lib/not-deleted /usr/lib/libcuda.so.1.2 ro - ext4 /dev/x rw\n"
    )
    assert driver.gone_mounts(info) == ("/usr/lib/libnvidia-ml.so.1.2",)
    assert driver.writable_mounts(info) == ("/usr/bin/nvidia-smi",)
    assert len(driver.mounted(info)) == 4
    assert driver.mounted("") == ()


LOG = """nvidia-installer log file '/var/log/nvidia-installer.log'
creation time: Tue Dec  1 00:00:00 2026
installer version: 570.148.08

Using built-in stream user interface
WARNING: a warning is no error
ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in
       your kernel.  This may be because it is in use.
-> Something else.
ERROR: Installation has failed.  Please see the file
       '/var/log/nvidia-installer.log' for details.
"""


def test_case_23_errors_of_the_installers_log() -> None:
    errors = driver.installer_errors(LOG)
    assert errors == ("An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in your kernel.  This may be because it is in use.",)
    assert driver.installer_errors("-> Installation is now complete.\nWARNING: x\n") == ()
    assert driver.installer_errors("") == ()


def test_case_23_the_kernel_part_is_left_out_in_the_installers_own_words() -> None:
    new = "  --silent\n  --no-kernel-modules\n      text\n  --no-x-check\n  --no-rebuild-initramfs\n"
    assert driver.run_words(new) == ("--no-kernel-modules", "--silent", "--no-x-check", "--no-rebuild-initramfs")
    assert driver.run_words("-s, --silent\n-x --no-kernel-module\n") == ("--no-kernel-module", "--silent")
    assert driver.run_words("--silent --kernel-module-only") == ()


def test_case_24_what_an_older_toolkit_leaves_out() -> None:
    here = [f"{LIB}/libcuda.so.{V}", f"{LIB}/libnvidia-tileiras.so.{V}", f"{LIB}/libcuda.so.1", f"{LIB}/libnvoptix.so.{V}"]
    assert driver.unlisted(f"{LIB}/libcuda.so.{V}\n", here, V) == (f"{LIB}/libnvidia-tileiras.so.{V}",)
    assert driver.unlisted(f"{LIB}/libcuda.so.{V}\n{LIB}/libnvidia-tileiras.so.{V}\n", here, V) == ()
    assert driver.unlisted("", here, V) == ()  # it listed nothing: another fault, with words of its own


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("570.148.08-0ubuntu0.22.04.1", V),
        ("1:570.148.08-1~deb12u1", V),
        ("550.135-1", "550.135"),
        ("570.148.08", V),
        ("570.148.081-1", "570.148.081"),
    ],
)
def test_upstream_version_of_a_package(package: str, version: str) -> None:
    assert driver.upstream(package) == version


MADISON = """ libcuda1 | 580.1.2-1 | http://x trixie/main amd64 Packages
 libcuda1 | 570.148.08-1 | file:/srv ./ Packages
 libcuda1 | 590.1-1 | http://x trixie/main Sources
nvidia-smi | 570.148.08-2 | file:/srv ./ Packages
rubbish
"""


def test_offers_and_the_exact_version_among_them() -> None:
    offered = driver.madison(MADISON)
    assert offered == {"libcuda1": ("580.1.2-1", "570.148.08-1"), "nvidia-smi": ("570.148.08-2",)}
    assert driver.exact(offered, ("libcuda1", "nvidia-smi"), V) == {"libcuda1": "570.148.08-1", "nvidia-smi": "570.148.08-2"}
    assert driver.exact(offered, ("libcuda1", "nvidia-smi"), "580.1.2") == {}  # only one of the two
    assert driver.exact(offered, ("libcuda1",), "570.148") == {}


def test_packages_that_must_move_along() -> None:
    needs = "libc6 (>= 2.3), libnvidia-ptxjitcompiler1 (= 570.148.08-1), nvidia-alternative (= 1-1), libnvidia-ml1:any (= 570.148.08-1) | x"
    assert driver.siblings(needs, "570.148.08-1") == ("libnvidia-ptxjitcompiler1", "libnvidia-ml1")


@pytest.mark.parametrize(
    ("name", "arch", "version"),
    [
        ("NVIDIA-Linux-x86_64-570.148.08.run", "x86_64", V),
        ("NVIDIA-Linux-aarch64-550.135.run", "aarch64", "550.135"),
        ("NVIDIA-Linux-x86_64-570.148.08-no-compat32.run", "x86_64", V),
    ],
)
def test_names_of_installers(name: str, arch: str, version: str) -> None:
    found = driver.RUN_NAME.fullmatch(name)
    assert found is not None
    assert (found["arch"], found["version"]) == (arch, version)
    assert driver.RUN_NAME.fullmatch("driver.run") is None
