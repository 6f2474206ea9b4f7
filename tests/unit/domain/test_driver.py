# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import driver


@pytest.mark.parametrize(
    ("module", "names", "right"),
    [
        ("570.148.08", ["libcuda.so", "libcuda.so.1", "libcuda.so.570.148.08", "libnvidia-ml.so.570.148.08"], True),
        ("570.148.08", ["libcuda.so.570.148.06", "libnvidia-ml.so.570.148.08"], False),  # the last part counts
        ("580.126", ["libcuda.so.580.126.09", "libnvidia-ml.so.580.126.09"], False),  # never a prefix
        ("570.148.08", ["libcuda.so.570.148.08"], False),
        ("570.148.08", ["libcuda.so.570.148.08", "libcuda.so.535.54.03", "libnvidia-ml.so.570.148.08"], False),  # an old one left behind
        ("", ["libcuda.so.570.148.08", "libnvidia-ml.so.570.148.08"], False),
        ("570.148.08", [], False),
    ],
)
def test_judge_versions(module, names, right):
    same, text = driver.judge_versions(module, [f"/usr/lib/{name}" for name in names])
    assert same is right
    assert text


def test_libraries_of_exactly_the_loaded_version():
    names = [
        "libcuda.so",
        "libcuda.so.1",
        "libcuda.so.570.148.08",
        "libcuda.so.570.148.06",
        "libnvidia-ml.so.570.148.08",
        "libnvidia-glcore.so.570.148.08",
        "nvidia.ko",
    ]
    assert driver.driver_files(names, "570.148.08") == ("libcuda.so.570.148.08", "libnvidia-ml.so.570.148.08")
    assert driver.driver_files(names, "570.148") == ()


def test_folders_of_the_linkers_cache():
    cache = (
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibcuda.so (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so\n"
    )
    assert driver.library_folders(cache) == ("/usr/lib/x86_64-linux-gnu",)
