# SPDX-License-Identifier: Apache-2.0
"""Runs a checked playbook over hosts: threads, batches, segments, failure policy; tells everything as events. Knows no domain word."""
