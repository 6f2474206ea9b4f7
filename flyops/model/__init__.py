# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses that travel between the rooms, and their JSON form. Knows nothing but errors."""
