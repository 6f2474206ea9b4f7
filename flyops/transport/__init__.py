# SPDX-License-Identifier: Apache-2.0
"""Byte streams to an agent: here, through ssh, sudo, lxc-attach; and the session that speaks frames over one of them."""
