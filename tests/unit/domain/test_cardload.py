# SPDX-License-Identifier: Apache-2.0
"""The card's neighbours: who they are, what is said of them, and that a busy one explains a failed cost without being one."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.domain import cardload
from flyops.domain.checks import FAILED, PASSED, Judged


def look(busy: float | None, *neighbours: dict[str, Any]) -> dict[str, Any]:
    return {"readable": True, "by": "NVML", "cards": [{"busy_pct": busy}], "neighbours": list(neighbours)}


NEIGHBOUR = {"pid": 72, "name": "train", "guest": "dev2", "mib": 700}


@pytest.mark.parametrize(
    ("cgroup", "guest"),
    [
        ("0::/lxc.payload.dev1/system.slice/flysim.service\n", "dev1"),
        ("9:cpuset:/lxc/dev2\n0::/\n", "dev2"),
        ("0::/lxc/902/ns/init.scope\n", "902"),
        ("0::/user.slice/user-0.slice\n", ""),
        ("", ""),
    ],
)
def test_whose_a_process_is(cgroup: str, guest: str) -> None:
    assert cardload.guest_of(cgroup) == guest


def test_a_busy_neighbour_is_said_and_explains_a_failed_cost() -> None:
    failed = cardload.told(Judged(FAILED, "the GPU run takes 1.2 host cores", "the CPU settings stay"), look(80, NEIGHBOUR))
    assert failed.verdict == FAILED and "pid 72 train in dev2 (700 MiB); the card 80 % busy" in failed.seen
    assert failed.fix.startswith("the card had a busy neighbour") and failed.fix.endswith("the CPU settings stay")
    assert failed.details["card"]["neighbours"] == [NEIGHBOUR]


def test_a_busy_neighbour_alone_fails_nothing_and_a_resting_one_explains_nothing() -> None:
    passed = cardload.told(Judged(PASSED, "GPU 0.1 cores"), look(80, NEIGHBOUR))
    assert (passed.verdict, passed.fix) == (PASSED, "") and "pid 72" in passed.seen
    resting = cardload.told(Judged(FAILED, "x", "do y"), look(0, NEIGHBOUR))
    assert resting.fix == "do y" and "pid 72" in resting.seen
    alone = cardload.told(Judged(FAILED, "x", "do y"), look(90))
    assert alone.fix == "do y" and "nobody else on the card" in alone.seen


def test_what_cannot_be_read_is_said() -> None:
    judged = Judged(PASSED, "GPU 0.1 cores")
    assert cardload.told(judged, None) is judged
    assert "not readable here: no NVML" in cardload.told(judged, {"readable": False, "why": "no NVML"}).seen
