# SPDX-License-Identifier: Apache-2.0
"""The test kit, shipped: an in-memory host and a runner that turns fixture files into tests."""
