# SPDX-License-Identifier: Apache-2.0
"""One error tree, a branch per stage of a run; leaves also inherit the builtin a caller would expect.

Every error tells who, where, what was expected, what was found and what to do. `exit_code` is what a script sees.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1  # a host failed
EXIT_USAGE = 2  # usage, inventory or playbook error: nothing was run
EXIT_REFUSED = 3  # a gate refused: nothing was changed
EXIT_UNREACHABLE = 4


class FlyopsError(Exception):
    """Root of the tree. `where` is a `file:line:column` or `host: task`; `fix` says what to do."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  to do: {self.fix}" if self.fix else text


class LoadError(FlyopsError, ValueError):
    """YAML, inventory, variable or template that cannot be used; found before the first task."""

    exit_code = EXIT_USAGE


class UsageError(FlyopsError, ValueError):
    """The words on the command line do not make sense."""

    exit_code = EXIT_USAGE


class PlanError(FlyopsError, ValueError):
    """A task that cannot be made ready for a host (an undefined variable, a wrong type)."""


class ConnectError(FlyopsError, OSError):
    """A host that cannot be reached, or whose key is unknown or changed."""

    exit_code = EXIT_UNREACHABLE


class ModuleError(FlyopsError, RuntimeError):
    """A module's failure on a host. `values` are returned to the play as the result's own."""

    def __init__(self, message: str, *, where: str = "", fix: str = "", **values: object) -> None:
        super().__init__(message, where=where, fix=fix)
        self.values = values


class Refused(ModuleError):
    """A gate said no; nothing was changed by this task. Ends the run with exit code 3."""

    exit_code = EXIT_REFUSED
