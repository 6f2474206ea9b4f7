# SPDX-License-Identifier: Apache-2.0
"""`fly provision NAME`: a dev container on this machine. What is not typed stays as the inventory has it, so that `--gpu` alone keeps the limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flyops.domain import gpuask
from flyops.errors import EXIT_OK, UsageError
from flyops.loading.inventory import Inventory
from flyops.operations import deploy, guests, incus, needs, pve, rootfs, verify
from flyops.operations.options import DeployOptions, ProvisionOptions, Target, VerifyOptions
from flyops.spec.arguments import to_bool

WINDOW_S = 5  # of a new guest's cost; `verify` alone takes the whole window


def run(options: ProvisionOptions) -> int:
    """The exit code of the play, and with --deploy of what comes after it."""
    began = time.monotonic()
    inventory = guests.checked(options.name)
    manager = pve if pve.wanted(options, inventory) else incus if incus.wanted(options, inventory) else None
    if manager is not None:
        gpu = card(options, guests.variables(inventory, options.name))
        code = manager.provision(options, inventory, gpu)
        last = code != EXIT_OK or options.plan or not options.deploy
        return code if last else verified(options, bool(gpuask.ask(gpu)))
    needs.root(f"make the container {options.name}")
    needs.program("lxc-start", "run containers")
    chosen = choose(options, inventory)
    result = guests.play("provision", inventory, chosen, options)
    if result.exit_code != EXIT_OK:
        return int(result.exit_code)
    if not options.json:
        print(summary(options, result.hosts["localhost"].vars["guest"]))
    if options.plan or not options.deploy:
        return EXIT_OK
    code = verified(options, bool(gpuask.ask(chosen["guest_gpu"])))
    if code == EXIT_OK and not options.json:
        print(f"{options.name}: provisioned, deployed and verified in {time.monotonic() - began:.1f} s")
    return code


def choose(options: ProvisionOptions, inventory: Inventory) -> dict[str, Any]:
    """The playbook's variables: what was typed, else what the inventory says of the guest, else how a new one is."""
    known = guests.variables(inventory, options.name)
    old = guests.base_of(options.name)
    base = old or (rootfs.place(options.rootfs) if options.plan else rootfs.ensure(options.rootfs))
    again = {} if old else known  # a guest that is there keeps its image and its ids; one that someone removed gets the same again
    cpus = options.cpus or known.get("container_cpus", "")
    mems = options.mems or known.get("container_mems", "")
    return {
        "guest_name": options.name,
        "guest_rootfs": str(base),
        "guest_network": options.network or known.get("container_network", "bridge"),
        "guest_bridge": known.get("container_bridge") or guests.BRIDGE,
        "guest_address": options.address,
        "guest_taken": guests.addresses(inventory, options.name),
        "guest_cpus": "" if cpus == "all" else cpus,
        "guest_mems": "" if mems == "none" else str(mems),
        "guest_memory": str(options.memory or known.get("container_memory", "4G")),
        "guest_disk": options.disk or str(again.get("container_disk") or ""),
        "guest_idmap": "auto" if options.unprivileged else again.get("container_idmap", ""),
        "guest_gpu": card(options, known),
        "guest_autostart": yes(options.autostart) if options.autostart else known.get("container_autostart", False),
        "guest_lxc_path": guests.LXC_PATH,
        "inventory_file": str(guests.inventory_file(options.name)),
    }


def yes(word: str) -> bool:
    """A word for true or false."""
    try:
        return to_bool(word)
    except ValueError:
        raise UsageError(f"--autostart: expected yes or no, found {word!r}") from None


def card(options: ProvisionOptions, known: Mapping[str, Any]) -> Any:
    """The declaration of the card, as the module takes it."""
    typed = {"--gpu": options.gpu, "--gpu-ids": options.gpu_ids, "--mig": options.mig, "--no-gpu": options.no_gpu}
    words = [word for word, value in typed.items() if value]
    if len(words) > 1:
        raise UsageError(f"{' and '.join(words)} say different things about the card", fix="type one of them")
    if not words:
        return known.get("container_gpu", False)
    listed = [word.strip() for word in (options.gpu_ids or options.mig).split(",")]
    declaration = {"--gpu": True, "--gpu-ids": listed, "--mig": {"mig": listed}, "--no-gpu": False}[words[0]]
    try:
        gpuask.ask(declaration)
    except gpuask.GpuError as error:
        raise UsageError(f"{words[0]}: {error}") from None
    return declaration


def verified(options: ProvisionOptions, gpu: bool) -> int:
    """A deploy into the guest, and the checks on what then runs."""
    target = Target(limit=options.name, json=options.json, verbose=options.verbose)
    code = deploy.run(DeployOptions(target=target, gpu=gpu, release=options.release))
    return code or verify.run(VerifyOptions(target=replace(target, extra=(f"check_window_s={WINDOW_S}",))))


def summary(options: ProvisionOptions, guest: Mapping[str, Any]) -> str:
    """What there is now (or would be) in one line, what an operator should know, and what comes next."""
    where = guest["address"] or "no network"
    cards = f", GPU with driver {guest['driver']}" if guest["driver"] else ""
    more = f", files up to {guest['disk'] / (1 << 30):.3g} GiB" if guest["disk"] else ""
    more += f", unprivileged ({guest['idmap']})" if guest["idmap"] else ""
    line = f"{options.name}: {where}, cpus {guest['cpus']}, memory {guest['memory'] / (1 << 30):.3g} GiB{more}{cards}"
    notes = "".join(f"\n  note: {note}" for note in guest["notes"])
    if options.plan:
        return f"{line}: nothing was changed, this is a plan{notes}"
    after = "" if options.deploy else f"; next: ./fly deploy --limit {options.name}"
    return f"{line}, systemd {guest['systemd']}{after}{notes}"
