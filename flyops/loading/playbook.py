# SPDX-License-Identifier: Apache-2.0
"""A checked playbook: what the parser makes of the YAML, inheritance resolved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from flyops.loading.positions import NOWHERE, Pos


@dataclass(frozen=True, eq=False)
class Inherit:
    """What a play or a block hands down. `options` are keyword -> raw value, the inner one over the outer one."""

    options: Mapping[str, Any] = field(default_factory=dict)
    when: tuple[Any, ...] = ()
    tags: tuple[str, ...] = ()
    vars: tuple[Mapping[str, Any], ...] = ()  # inner first
    environment: tuple[Any, ...] = ()  # outer first
    delegate_to: Any = None


@dataclass(frozen=True, eq=False)
class Task:
    """One task. Values are raw: templates are rendered per host."""

    module: str
    args: Mapping[str, Any]
    pos: Pos = NOWHERE
    name: str = ""
    order: tuple[int, ...] = ()
    inherit: Inherit = Inherit()  # own values included
    outer: Inherit = Inherit()  # of the blocks and the play around it: what an include hands on
    loop: Any = None
    loop_flatten: bool = False  # with_items
    loop_control: Mapping[str, Any] = field(default_factory=dict)
    register: str = ""
    notify: tuple[Any, ...] = ()
    listen: tuple[str, ...] = ()
    failed_when: tuple[Any, ...] | None = None
    changed_when: tuple[Any, ...] | None = None
    until: tuple[Any, ...] | None = None
    retries: Any = None
    delay: Any = None
    folder: str = ""  # of the file it stands in
    texts: tuple[str, ...] = ()  # all template texts in it

    @property
    def title(self) -> str:
        """What the display calls it."""
        return self.name or self.module

    def option(self, name: str, default: Any = None) -> Any:
        """An inherited keyword's raw value."""
        return self.inherit.options.get(name, default)


@dataclass(frozen=True, eq=False)
class Block:
    """A block that has a rescue or an always; others are dissolved into their tasks."""

    body: tuple[Any, ...]
    rescue: tuple[Any, ...]
    always: tuple[Any, ...]
    pos: Pos = NOWHERE
    tags: tuple[str, ...] = ()


Node = Union[Task, Block]


@dataclass(frozen=True, eq=False)
class Play:
    """One play."""

    name: str
    hosts: Any
    pos: Pos
    number: int = 0
    inherit: Inherit = Inherit()
    vars_files: tuple[Any, ...] = ()
    gather_facts: Any = True
    gather_subset: Any = None
    pre_tasks: tuple[Node, ...] = ()
    tasks: tuple[Node, ...] = ()
    post_tasks: tuple[Node, ...] = ()
    handlers: tuple[Node, ...] = ()
    serial: tuple[Any, ...] = ()
    max_fail_percentage: Any = None
    force_handlers: bool = False
    secret_vars: tuple[str, ...] = ()
    folder: str = ""  # playbook_dir

    @property
    def title(self) -> str:
        """What the display calls it."""
        return self.name or str(self.hosts)


@dataclass(frozen=True, eq=False)
class Playbook:
    """All plays of a file and of those it imports."""

    path: str
    plays: tuple[Play, ...]


def walk(nodes: tuple[Node, ...]) -> Iterator[Task]:
    """All tasks below, in order."""
    for node in nodes:
        if isinstance(node, Block):
            yield from walk(node.body + node.rescue + node.always)
        else:
            yield node


def selected(tags: tuple[str, ...], only: frozenset[str], skip: frozenset[str]) -> bool:
    """Ansible's rule for --tags and --skip-tags."""
    own = set(tags) or {"untagged"}
    chosen = "always" in own or bool(own & only) or ("never" not in own and ("all" in only or ("tagged" in only and own != {"untagged"})))
    if not chosen or not skip:
        return chosen
    if "all" in skip:
        return "always" in own and "always" not in skip
    return not (own & skip or ("tagged" in skip and own != {"untagged"}))
