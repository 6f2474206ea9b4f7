# SPDX-License-Identifier: Apache-2.0
"""Runs one module: validate, read, plan, and apply on the host it is given. In check mode that host is an overlay."""

from __future__ import annotations

import traceback
from typing import Any, Dict

from flyops.agent.command import TimedOut
from flyops.agent.overlay import OverlayStop
from flyops.errors import FlyopsError, ModuleError, Refused
from flyops.model.change import Change, Same
from flyops.model.host import Host
from flyops.spec import validate

Result = Dict[str, Any]


def failure(msg: str, **values: Any) -> Result:
    """A failed result."""
    return {"changed": False, "failed": True, **values, "msg": msg}


def run_module(module: Any, args: dict[str, Any], host: Host, diff: bool = False) -> Result:
    """The result of one module on one host: changed, failed, msg, diff, skipped, refused and the module's own values.

    `module` has SPEC, read, plan and apply. Nothing it raises leaves this function.
    """
    values, errors = validate(module.SPEC, args)
    if errors:
        return failure("; ".join(errors))
    try:
        return _run(module, values, host, diff)
    except OverlayStop as stop:
        return _would(module, Change(), diff, stop)
    except Refused as err:
        return failure(_text(err), refused=True, **err.values)
    except ModuleError as err:
        return failure(_text(err), **err.values)
    except TimedOut as err:
        return failure(str(err), stdout=_decode(err.stdout), stderr=_decode(err.stderr), timed_out=True)
    except OSError as err:
        return failure(_os_text(err), errno=err.errno)
    except FlyopsError as err:
        return failure(_text(err))
    except Exception as err:  # a bug in a module is that task's failure, told in full
        return failure(f"{type(err).__name__}: {err}", exception=traceback.format_exc())


def _run(module: Any, values: dict[str, Any], host: Host, diff: bool) -> Result:
    decision = module.plan(values, module.read(values, host))
    if decision is None:
        return {"changed": False, "failed": False}
    if isinstance(decision, Same):
        return _same(decision)
    if host.check and module.SPEC.check == "unknown":
        return _would(module, decision, diff, None)
    try:
        extra = module.apply(values, decision, host)
    except OverlayStop as stop:
        return _would(module, decision, diff, stop)
    return _changed(decision, diff, extra or {})


def _same(decision: Same) -> Result:
    result: Result = {"changed": False, "failed": False, **decision.values}
    if decision.skipped:
        result["skipped"] = True
    if decision.msg:
        result["msg"] = decision.msg
    return result


def _changed(change: Change, diff: bool, extra: dict[str, Any]) -> Result:
    result: Result = {"changed": True, "failed": False, **change.values, **extra}
    if diff and result["changed"]:
        result.setdefault("diff", [{"header": d.header, "before": d.before, "after": d.after} for d in change.diff])
    return result


def _would(module: Any, change: Change, diff: bool, stop: OverlayStop | None) -> Result:
    """Check mode's answer: it would change, or, for a module that cannot know, that it is unknown."""
    result = _changed(change, diff, {})
    if module.SPEC.check == "unknown":
        result.update(changed=False, unknown=True)
    if stop is not None:
        result.setdefault("msg", str(stop))
    return result


def _text(err: FlyopsError) -> str:
    return f"{err.message}; to do: {err.fix}" if err.fix else err.message


def _os_text(err: OSError) -> str:
    place = f": {err.filename}" if err.filename else ""
    return f"{err.strerror or err}{place}"


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "replace")
