# SPDX-License-Identifier: Apache-2.0
"""The MANIFEST of a release."""

from __future__ import annotations

import pytest

from flyops.domain import manifest
from flyops.domain.manifest import Manifest

A, B = "a" * 64, "b" * 64
GOOD = Manifest({"version": "0.1.0-3f9c1a2b4d", "features": "cuda", "ptx": "sm_75 sm_90", "zeta": "1"}, {"bin/flysim": A, "ptx/sm_75.ptx": B})


def test_parse_gives_back_what_render_wrote():
    assert manifest.parse(manifest.render(GOOD)) == GOOD


def test_render_is_the_same_for_equal_manifests():
    turned = Manifest(dict(reversed(GOOD.header.items())), dict(reversed(GOOD.files.items())))

    assert manifest.render(turned) == manifest.render(GOOD)


def test_header_values_are_lists_and_none_is_empty():
    assert (GOOD.features, GOOD.ptx) == (("cuda",), ("sm_75", "sm_90"))
    assert Manifest({"features": "none", "ptx": "none"}).features == ()
    assert Manifest({"features": "none", "ptx": "none"}).ptx == ()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"{A}  ../../etc/passwd", "leaves the release"),
        (f"{A}  /etc/passwd", "leaves the release"),
        (f"{A}  bin//flysim", "leaves the release"),
        (f"{A}  bin/./x", "leaves the release"),
        (f"{A}  bin/flysim", "listed twice"),
        (f"{A} one-blank", "line 4: expected"),
        (f"{A[:-1]}  short", "line 4: expected"),
        ("garbage", "line 4: expected"),
    ],
)
def test_a_line_that_cannot_be_trusted_is_refused_by_its_number(line, reason):
    text = f"# version: v\n# features: none\n{A}  bin/flysim\n{line}\n"

    with pytest.raises(manifest.ManifestError) as caught:
        manifest.parse(text)

    assert reason in str(caught.value)
    assert "line 4" in str(caught.value)


def test_all_reasons_are_told_at_once():
    with pytest.raises(manifest.ManifestError) as caught:
        manifest.parse("garbage\nmore\n")

    assert len(caught.value.reasons) == 4  # two lines, no version, no binary


def test_differences_names_each_file_and_ignores_the_manifest_itself():
    seen = {"bin/flysim": B, "extra": A, "MANIFEST": A}

    found = manifest.differences(GOOD, seen)

    assert [text.split()[0] for text in found] == ["bin/flysim", "extra", "ptx/sm_75.ptx"]
    assert manifest.differences(GOOD, {**GOOD.files, "MANIFEST": A}) == []
