# SPDX-License-Identifier: Apache-2.0
"""What a task can do on a host: one file each, with SPEC, read, plan and apply. A module never imports another."""
