# SPDX-License-Identifier: Apache-2.0
"""YAML with positions, inventory, variables and Jinja2 -> a checked playbook; every error with file, line and column, all at once."""
