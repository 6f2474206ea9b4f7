# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from flyops.domain import devicerules


@pytest.mark.parametrize(
    ("rules", "open_"),
    [
        ("c 195:254 rw\nc 195:0 rw\n", True),  # as injected
        ("c 195:* m\n", False),  # what the reload left
        ("", False),
        ("c 195:* rwm\n", True),
        ("a *:* rwm\n", True),
        ("b 195:* rwm\n", False),
        ("c 195:1 rw\nc 19:0 rw\n", False),
        ("c *:* m\n", False),
        ("c 195:0 r\n", False),
    ],
)
def test_case_27_rules_before_and_after_a_reload(rules: str, open_: bool) -> None:
    assert devicerules.rule_allows(rules, 195, 0) is open_


@pytest.mark.parametrize(
    ("show", "names", "open_"),
    [
        ("DevicePolicy=auto\n", ["nvidia"], True),
        ("", ["nvidia"], True),  # an old systemd, or no such property
        ("DevicePolicy=closed\nDeviceAllow=char-nvidia* rw\n", ["nvidia"], True),
        ("DevicePolicy=closed\nDeviceAllow=char-nvidia* rw\n", ["nvidia-uvm"], True),
        ("DevicePolicy=closed\nDeviceAllow=/dev/nvidia0 rw\n", ["nvidia"], True),
        ("DevicePolicy=closed\n", ["nvidia"], False),
        ("DevicePolicy=strict\nDeviceAllow=char-nvidia-uvm rw\n", ["nvidia"], False),
        ("DevicePolicy=closed\nDeviceAllow=char-nvidia* r\n", ["nvidia"], False),
        ("DevicePolicy=closed\nDeviceAllow=/dev/nvidia1 rw\n", ["nvidia"], False),
        ("DevicePolicy=auto\nDeviceAllow=/dev/kvm rw\n", ["nvidia"], False),  # auto with any entry is a list of all that may be opened
    ],
)
def test_case_34_what_a_units_own_config_opens(show: str, names: list[str], open_: bool) -> None:
    assert devicerules.config_allows(show, "/dev/nvidia0", names) is open_


def test_where_a_process_is_in_the_devices_hierarchy() -> None:
    text = "12:cpuset:/\n5:devices:/system.slice/a.service\n0::/system.slice/a.service\nrubbish\n"
    assert devicerules.devices_path(text) == "/system.slice/a.service"
    assert devicerules.devices_path("4:pids,devices:/b:c\n") == "/b:c"
    assert devicerules.devices_path("0::/a\n") == ""
