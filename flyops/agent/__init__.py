# SPDX-License-Identifier: Apache-2.0
"""What runs on the target: frames in, modules, frames out. Standard library only, Python 3.8 and later; all of it travels."""
