# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all end-to-end tests may ask for: real LXC guests, a real podman, a real LXD."""

from tests.beds.lxc import lxc_base, lxc_guest, lxc_make
from tests.beds.lxd import lxd
from tests.beds.podman import podman

__all__ = ["lxc_base", "lxc_guest", "lxc_make", "lxd", "podman"]
