# SPDX-License-Identifier: Apache-2.0
"""Controller modules: SPEC and `act(args, scope) -> Outcome`. They look at variables, never at a host."""
