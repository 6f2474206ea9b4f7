# SPDX-License-Identifier: Apache-2.0
"""Pure: a task, a host's variables and the results so far -> what that host does next. No input, no output."""
