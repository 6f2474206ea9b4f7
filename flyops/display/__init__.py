# SPDX-License-Identifier: Apache-2.0
"""Listeners: plain lines, a live terminal, JSON lines. Nobody imports them but who starts a run."""
