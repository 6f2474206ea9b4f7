# SPDX-License-Identifier: Apache-2.0
"""What the editors of text files share: look at the file, and turn a new text into a change. Links are followed, as in Ansible."""

from __future__ import annotations

import codecs
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Optional

from flyops.domain import attributes, paths, placing
from flyops.domain.attributes import WRITE_ARGS
from flyops.domain.placing import Payload, Place
from flyops.errors import ModuleError
from flyops.model.change import Change, Decision, Same
from flyops.model.host import Host
from flyops.spec.arguments import Arg

EDIT_ARGS: dict[str, Arg] = {
    **WRITE_ARGS,
    "encoding": Arg("str", "Encoding of the file; in UTF-8 bytes that are none stay as they are", default="utf-8"),
}


@dataclass(frozen=True)
class Text:
    """A file as text; None when there is none. Bytes that are no UTF-8 are kept as surrogates, so that writing gives them back."""

    place: Place
    text: Optional[str]
    encoding: str = "utf-8"


def look(args: dict[str, Any], host: Host, *, create: bool) -> Text:
    """The file to edit. A missing one fails unless it may be made or is to lose something."""
    wanted = attributes.wanted(args, host)
    encoding = codec(args["encoding"])
    path = paths.expand_home(args["path"], host)
    place = placing.look(host, path, wanted, follow=True, whole=True)
    if place.stat is None:
        if not create:
            raise ModuleError(f"Destination {path} does not exist !", fix="make it first, or set create: true", rc=257)
        return Text(place, None, encoding)
    if not place.is_file:
        raise ModuleError(f"Path {path} is a {place.stat.kind}, expected a file", fix="give the path of a text file", rc=256)
    try:
        return Text(place, (place.data or b"").decode(encoding, "surrogateescape"), encoding)
    except UnicodeError as err:
        raise ModuleError(f"{path} is not written in {encoding}: {err}", fix="name the encoding that it is written in") from None


def codec(encoding: str) -> str:
    """The encoding's own name; one that Python does not know is the task's error."""
    try:
        return codecs.lookup(encoding).name
    except LookupError:
        raise ModuleError(f"encoding {encoding!r} is not known", fix="use a name that Python knows, such as utf-8 or latin-1") from None


def decide(state: Text, new: str, msg: str, **values: Any) -> Decision:
    """A change when the text or the attributes differ."""
    data = new.encode(state.encoding, "surrogateescape")
    change = placing.change_to(state.place, placing.payload_of(data), **values)
    if change is None:
        return Same({**values, "msg": msg})
    moved = "" if state.text == new else msg
    said = " and ".join(
        part for part in (moved, "ownership, perms or SE linux context changed" if len(change.diff) > (state.text != new) else "") if part
    )
    return Change(change.before, change.after, change.diff, {**values, "msg": said})


def apply(args: dict[str, Any], change: Change, host: Host) -> dict[str, Any]:
    """Write the new text; a folder that is missing is made, as Ansible does for `create`."""
    place: Place = change.before
    wanted: Payload = change.after
    folder = posixpath.dirname(place.path)
    if place.stat is None and folder and host.stat(folder, follow=True) is None:
        host.mkdir(folder)
    done = placing.put(host, place, wanted, args)
    kept = done.get("backup_file", "")
    return {"backup": kept, "backup_file": kept} if kept else {"backup": ""}


def pattern(text: Optional[str], name: str, flags: int = 0) -> Optional[re.Pattern[str]]:
    """A compiled pattern; a wrong one is the task's error, told with its argument's name."""
    if text is None:
        return None
    try:
        return re.compile(text, flags)
    except re.error as err:
        raise ModuleError(f"{name} {text!r} is no regular expression: {err}", fix="see Python's re for the syntax") from None
