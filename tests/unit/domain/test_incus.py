# SPDX-License-Identifier: Apache-2.0
"""Incus and LXD instances: what a declaration means, what converges and what stays, what the daemon would refuse, what a hook said."""

from __future__ import annotations

from typing import Any

import pytest

from flyops.domain import gpuask, incus

CARDS = (gpuask.Card("0000:0f:00.0", 0, "GPU-11111111-2222"), gpuask.Card("0000:af:00.0", 1, "GPU-99999999-2222"))


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        (False, {}),
        (True, {"flyops-gpu": {"type": "gpu", "gputype": "physical", "mode": "0666"}}),
        (["GPU-99999999-2222"], {"flyops-gpu-0000-af-00-0": {"type": "gpu", "gputype": "physical", "pci": "0000:af:00.0", "mode": "0666"}}),
        (
            {"mig": ["1/2/0"]},
            {"flyops-gpu-0000-af-00-0-2-0": {"type": "gpu", "gputype": "mig", "pci": "0000:af:00.0", "mig.gi": "2", "mig.ci": "0"}},
        ),
    ],
)
def test_cards_are_named_by_their_slot(asked: Any, devices: dict[str, dict[str, str]]) -> None:
    assert incus.gpu_devices(gpuask.ask(asked), CARDS) == devices


@pytest.mark.parametrize(
    ("asked", "expanded", "lacking", "says"),
    [
        (True, {"nvidia.runtime": "true"}, (), []),
        (True, {"nvidia.runtime": "true", "security.privileged": "true"}, (), ["unprivileged"]),
        (True, {"security.privileged": "true"}, (), []),
        (False, {"nvidia.runtime": "true", "security.privileged": "true"}, (), ["unprivileged"]),
        ({"mig": ["0/1/0"]}, {}, (), ["MIG"]),
        ({"mig": ["0/1/0"]}, {"nvidia.runtime": "true"}, (), []),
        (True, {"nvidia.runtime": "true"}, ("nvidia-container-cli",), ["nvidia-container-cli"]),
        (True, {}, ("nvidia-container-cli",), []),
        (True, {"nvidia.runtime": "true", "security.privileged": "true"}, ("x",), ["unprivileged", "x"]),
    ],
)
def test_case_35_38_what_the_daemon_would_refuse_or_hang_in(asked: Any, expanded: dict[str, str], lacking: tuple[str, ...], says: list[str]) -> None:
    found = incus.refusals(gpuask.ask(asked), expanded, lacking)
    assert len(found) == len(says)
    assert all(word in text for word, text in zip(says, found, strict=True))


def converge(instance: dict[str, Any], wanted: incus.Wanted) -> tuple[dict[str, str], dict[str, Any]]:
    return incus.converge(instance, wanted, incus.record(instance["config"]))


def test_a_declaration_comes_and_goes_and_the_rest_stays() -> None:
    before = {"config": {"user.note": "x", "volatile.uuid": "y", "raw.lxc": "lxc.a = b\n"}, "devices": {"eth0": {"type": "nic"}}}
    mine = incus.Record(True)
    bare = {"config": {**before["config"], incus.RECORD: mine.text()}, "devices": before["devices"]}
    wanted = incus.Wanted({"limits.cpu": "0-1"}, {"d": {"type": "unix-char"}}, "lxc.cgroup.cpuset.mems = 0")
    config, devices = converge(bare, wanted)
    assert config["raw.lxc"] == "lxc.a = b\nlxc.cgroup.cpuset.mems = 0"
    assert (config["limits.cpu"], config["user.note"], config["volatile.uuid"]) == ("0-1", "x", "y")
    assert set(devices) == {"d", "eth0"}
    assert converge({"config": config, "devices": devices}, wanted) == (config, devices)
    config, devices = converge({"config": config, "devices": devices}, incus.Wanted())
    assert config == {**bare["config"], "raw.lxc": "lxc.a = b"}
    assert devices == before["devices"]
    assert converge(bare, incus.Wanted()) == (bare["config"], bare["devices"])


def test_what_is_not_ours_is_not_taken_over() -> None:
    there = {"config": {incus.RECORD: incus.Record(True).text(), "raw.lxc": "lxc.cgroup2.cpuset.mems = 1"}, "devices": {"d": {"type": "disk"}}}
    with pytest.raises(incus.IncusError, match="devices d are there and not ours"):
        converge(there, incus.Wanted(devices={"d": {"type": "unix-char"}}))
    with pytest.raises(incus.IncusError, match=r"raw\.lxc has .*not ours"):
        converge(there, incus.Wanted(mems="lxc.cgroup2.cpuset.mems = 0"))


@pytest.mark.parametrize("text", ["", "yes", "[]", '{"owner": "me"}', "{"])
def test_a_record_is_ours_or_none(text: str) -> None:
    assert not incus.record({incus.RECORD: text}).ours


def test_a_record_tells_itself_again() -> None:
    mine = incus.Record(True, ("a", "b"), ("d",), True)
    assert incus.record({incus.RECORD: mine.text()}) == mine


def test_only_some_keys_need_a_start() -> None:
    config = {"limits.cpu": "0-1", "nvidia.runtime": "true", "raw.lxc": "x", "boot.autostart": "true", "user.a": "b"}
    devices = {"g": {"type": "gpu", "gputype": "physical"}, "m": {"type": "gpu", "gputype": "mig"}}
    assert set(incus.cold(config, devices)) == {"nvidia.runtime", "raw.lxc", "device m"}


LOG = """
-- WARNING, the following logs are for debugging purposes only --

I1201 01:02:03.4 77 nvc.c:376] initializing library context (version=1.17.8, build=x)
W1201 01:02:03.5 77 nvc.c:397] skipping kernel modules load due to user namespace
E1201 01:02:03.6 77 driver.c:405] could not start driver service: load library failed: libnvidia-ml.so.1
E1201 01:02:03.7 77 rpc.c:71] the second error
nvidia-container-cli: initialization error: load library failed
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (LOG, "E1201 01:02:03.6 77 driver.c:405] could not start driver service: load library failed: libnvidia-ml.so.1"),
        (
            "\n".join(one for one in LOG.splitlines() if not one.startswith("E")),
            "W1201 01:02:03.5 77 nvc.c:397] skipping kernel modules load due to user namespace",
        ),
        ("nvidia-container-cli: initialization error: x\n", "nvidia-container-cli: initialization error: x"),
        ("I1201 01:02:03.4 77 nvc.c:376] all fine\nNVRM version:   1.2\n", ""),
        ("Every line that begins with E is no error", ""),
    ],
)
def test_case_36_the_first_line_that_matters(log: str, line: str) -> None:
    assert incus.first_bad_line(log) == line


def test_case_36_what_an_instances_log_says() -> None:
    log = (
        "Log:\n\nlxc d1 20261201010203.1 WARN     x - ../src/x.c:f:1 - no matter\n"
        "lxc d1 20261201010203.2 ERROR    conf - ../src/lxc/conf.c:run_buffer:571 - Script exited with status 1\n"
        "lxc d1 20261201010203.3 ERROR    conf - ../src/lxc/conf.c:lxc_setup:4400 - Failed to run mount hooks\n"
    )
    assert incus.lxc_errors(log) == ["Script exited with status 1", "Failed to run mount hooks"]
    assert incus.hook_failed(log)
    assert not incus.hook_failed("Failed to detect requested GPU device")


@pytest.mark.parametrize(
    ("name", "right"), [("dev1", True), ("D-1", True), ("1dev", False), ("a/b", False), ("a-", False), ("", False), ("a" * 64, False)]
)
def test_names(name: str, right: bool) -> None:
    assert (incus.check_name(name) == "") == right
