# SPDX-License-Identifier: Apache-2.0
"""One declaration for the cards of every kind of guest: what it may say, and what it means on a host."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.domain import gpuask
from flyops.domain.gpuask import Ask, Chosen, GpuError, Mig


def information(minor: int, uuid: str, more: str = "") -> str:
    return f"Model: \t\t Made Up 9000\nIRQ:   \t\t 57\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nDevice Minor: \t {minor}\n{more}"


# nvidia-smi counts by bus id: 0 is minor 1 here, 1 is minor 0.
HOST = gpuask.cards(
    {
        "0000:81:00.0": information(0, "GPU-bbbb0000-1111-2222-3333-444444444444"),
        "0000:01:00.0": information(1, "GPU-aaaa0000-1111-2222-3333-444444444444"),
        "0000:82:00.0": information(2, "GPU-cccc0000-1111-2222-3333-444444444444", "GPU Excluded:\t Yes\n"),
    }
)
MINORS = {"config": 1, "monitor": 2, "gpu1/gi1/access": 12, "gpu1/gi1/ci0/access": 13, "gpu0/gi1/access": 200}


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (None, Ask()),
        (False, Ask()),
        ("false", Ask()),
        ("", Ask()),
        ([], Ask()),
        (True, Ask(every=True)),
        ("true", Ask(every=True)),
        ("all", Ask(every=True)),
        (0, Ask(cards=("0",))),
        ([0, "1", 0], Ask(cards=("0", "1"))),
        ("0,1", Ask(cards=("0", "1"))),
        ("GPU-aaaa0000", Ask(cards=("GPU-aaaa0000",))),
        (["0000:01:00.0"], Ask(cards=("0000:01:00.0",))),
        ({"mig": "0/1/0"}, Ask(mig=(Mig("0", 1, 0),))),
        ({"mig": ["MIG-GPU-aaaa0000/1/0", {"gpu": 1, "gi": 2, "ci": 0}]}, Ask(mig=(Mig("GPU-aaaa0000", 1, 0), Mig("1", 2, 0)))),
    ],
)
def test_what_may_be_said(typed: Any, found: Ask) -> None:
    assert gpuask.ask(typed) == found
    assert bool(found) is (found != Ask())


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("nvidia0", "found 'nvidia0'"),
        ("0; rm -rf /", "found '0; rm -rf /'"),
        ([True], "found True"),
        ([""], "found ''"),
        ({"gpu": 1}, "found the keys gpu"),
        ({}, "an empty mapping"),
        ({"mig": "0:1"}, "expected a MIG instance as CARD/GI/CI"),
        ({"mig": "MIG-0f1e2d3c-1111"}, "its UUID alone does not say"),
        (-1, "found -1"),
    ],
)
def test_what_means_nothing(typed: Any, why: str) -> None:
    with pytest.raises(GpuError, match=r"gpu: ") as told:
        gpuask.ask(typed)
    assert why in str(told.value)


def test_the_node_is_named_by_the_device_minor_not_by_nvidia_smis_index() -> None:
    assert gpuask.choose(gpuask.ask([0]), HOST, {}) == Chosen((1,))
    assert gpuask.choose(gpuask.ask(["GPU-AAAA0000-1111-2222-3333-444444444444"]), HOST, {}) == Chosen((1,))
    assert gpuask.choose(gpuask.ask(["GPU-bbbb"]), HOST, {}) == Chosen((0,))
    assert gpuask.choose(gpuask.ask(["00000000:81:00.0", 0]), HOST, {}) == Chosen((0, 1))
    assert gpuask.choose(gpuask.ask(True), HOST, {}) is None


def test_a_mig_instance_is_its_card_and_two_capabilities() -> None:
    assert gpuask.choose(gpuask.ask({"mig": "0/1/0"}), HOST, MINORS) == Chosen((1,), (12, 13))
    with pytest.raises(GpuError, match="expected gpu0/gi1/ci0/access, found gpu0/gi1/access"):
        gpuask.choose(gpuask.ask({"mig": "1/1/0"}), HOST, MINORS)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ([2], "no card is '2'; found 0: GPU-aaaa0000"),  # the excluded one does not count
        (["GPU-dddd"], "no card is 'GPU-dddd'"),
        (["0000:82:00.0"], "no card is"),
    ],
)
def test_what_is_not_here(typed: Any, why: str) -> None:
    with pytest.raises(GpuError, match=why.replace("?", r"\?")):
        gpuask.choose(gpuask.ask(typed), HOST, {})


def test_unread_uuids_and_missing_minors_are_told() -> None:
    unread = gpuask.cards({"0000:01:00.0": information(0, "GPU-????????-????-????-????-????????????")})
    with pytest.raises(GpuError, match="run nvidia-smi once"):
        gpuask.choose(gpuask.ask(["GPU-aaaa"]), unread, {})
    old = gpuask.cards({"0000:01:00.0": "Model: \t Old\n"})
    with pytest.raises(GpuError, match="does not tell the Device Minor"):
        gpuask.choose(gpuask.ask([0]), old, {})
    twins = gpuask.cards({"0000:01:00.0": information(0, "GPU-aaaa1"), "0000:02:00.0": information(1, "GPU-aaaa2")})
    with pytest.raises(GpuError, match="more than one card is"):
        gpuask.choose(gpuask.ask(["GPU-aaaa"]), twins, {})


def test_which_nodes_are_given() -> None:
    names = ("nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap12", "nvidia-modeset", "nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl")
    assert gpuask.given(names, None) == names
    assert gpuask.given(names, Chosen((1,))) == ("nvidia-modeset", "nvidia-uvm", "nvidia1", "nvidiactl")
    assert gpuask.given(names, Chosen((1,), (12,))) == ("nvidia-caps/nvidia-cap12", "nvidia-modeset", "nvidia-uvm", "nvidia1", "nvidiactl")
    with pytest.raises(GpuError, match="expected the nodes /dev/nvidia-caps/nvidia-cap13"):
        gpuask.given(names, Chosen((1,), (12, 13)))
