# SPDX-License-Identifier: Apache-2.0
"""Names of releases."""

from __future__ import annotations

import pytest

from flyops.domain import version

SOURCES = {"src/main.rs": "a" * 64, "Cargo.lock": "b" * 64}


def test_same_inputs_same_name_in_any_order():
    turned = dict(reversed(SOURCES.items()))

    assert version.version_of("0.1.0", SOURCES, ["cuda", "x"]) == version.version_of("0.1.0", turned, ["x", "cuda", "x"])


@pytest.mark.parametrize(
    "other",
    [
        {**SOURCES, "src/main.rs": "c" * 64},
        {**SOURCES, "src/new.rs": "a" * 64},
        {"src/lib.rs": "a" * 64, "Cargo.lock": "b" * 64},
        {"Cargo.lock": "b" * 64},
    ],
    ids=["content", "added", "renamed", "removed"],
)
def test_any_change_of_sources_changes_the_name(other):
    assert str(version.version_of("0.1.0", SOURCES, [])) != str(version.version_of("0.1.0", other, []))


def test_features_change_the_hash_and_only_cuda_the_mark():
    plain, fault, cuda = (version.version_of("0.1.0", SOURCES, features) for features in ([], ["fault"], ["cuda"]))

    assert len({plain.sources, fault.sources, cuda.sources}) == 3
    assert [str(v).endswith("+cuda") for v in (plain, fault, cuda)] == [False, False, True]


@pytest.mark.parametrize("text", ["0.1.0-3f9c1a2b4d", "12.0.33-0000000000+cuda", "0.1.0-3f9c1a2b4d+cuda.sm_75.sm_90a"])
def test_parse_takes_apart_what_str_joins(text):
    parsed = version.parse(text)

    assert parsed is not None
    assert str(parsed) == text


@pytest.mark.parametrize(
    "text", ["", "0.1.0", "0.1-3f9c1a2b4d", "0.1.0-3f9c1a2b4", "0.1.0-3f9c1a2b4d+CUDA", "../0.1.0-3f9c1a2b4d", "0.1.0-3f9c1a2b4d\n"]
)
def test_parse_refuses_what_is_no_name(text):
    assert version.parse(text) is None


def test_added_ptx_is_in_the_name_once_and_in_order():
    name = version.with_arches("0.1.0-3f9c1a2b4d+cuda", ["sm_90"])

    assert name == "0.1.0-3f9c1a2b4d+cuda.sm_90"
    assert version.with_arches(name, ["sm_86", "sm_90"]) == "0.1.0-3f9c1a2b4d+cuda.sm_86.sm_90"
    assert version.with_arches("any-name", []) == "any-name"


def test_crate_version_is_the_first_of_the_workspace():
    assert version.crate_version('[workspace.package]\nversion = "0.4.2"\n[dependencies]\nx = { version = "9.9.9" }\n') == "0.4.2"
    assert version.crate_version('rust-version = "1.90"\n') is None
