# SPDX-License-Identifier: Apache-2.0
"""flyops: Ansible-style orchestration and provisioning for GPU dev containers."""

__version__ = "0.1.0"
