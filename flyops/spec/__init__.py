# SPDX-License-Identifier: Apache-2.0
"""Argument declarations of modules: types, choices, defaults and relations as data; one validator that reports all errors at once."""

from flyops.spec.arguments import Arg, Spec, canonical_names, check_literals, validate

__all__ = ["Arg", "Spec", "canonical_names", "check_literals", "validate"]
