# SPDX-License-Identifier: Apache-2.0
"""Rules as pure functions: text and numbers in, values out. No input or output but through the Host that a caller hands in."""
