# SPDX-License-Identifier: Apache-2.0
"""`invoke deploy`: build (or take) a release and a connectome, then playbooks/deploy.yml; at the end the report and the page's address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flyops.domain import gate
from flyops.errors import EXIT_OK, UsageError
from flyops.executor.run import RunResult
from flyops.operations import build, card, connectome, hosts, ptx, reports, role
from flyops.operations import release as releases
from flyops.operations.options import DeployOptions
from flyops.operations.progress import Progress

LOWEST_ARCH = "sm_75"  # the embedded PTX: what there is where nobody can ask the card


def run(options: DeployOptions) -> int:
    """The exit code of the deploy; nothing was changed by a 2 or 3."""
    check_accept(options)
    chosen = hosts.find(options.target)
    tag = role.gate(chosen, options.release)
    gpu_on = options.gpu or (not options.release and any_gpu(chosen))
    release = take_release(options, gpu_on)
    role.gate_release(tag, release)
    brains = {name: brain(name, release) for name in sorted(names_of(options, chosen))}
    result = hosts.play(
        chosen,
        "deploy",
        want_gpu=options.gpu,
        release_tar=str(release.tar),
        release_version=release.version,
        connectomes=brains,
        run_wait=options.wait_s,
        allow_jit=options.allow_jit,
        accept_segments=[options.accept] if options.accept else [],
        archive_state=options.archive_state,
        force=options.force,
        agent_bundle=str(bundle_file()),
        **chosen_brain(options),
    )
    if options.target.check:
        return result.exit_code
    report(options, result, release.version)
    return result.exit_code or reports.touched(result.hosts)


def check_accept(options: DeployOptions) -> None:
    """One segment by its name, or the whole state: never a list that somebody typed without looking at each."""
    names = ", ".join(name.replace(" ", "-") for name in gate.SEGMENTS)
    if options.accept and (gate.unknown_segments([options.accept]) or options.archive_state):
        found = f"{options.accept!r} and --archive-state" if options.archive_state else repr(options.accept)
        raise UsageError(f"--accept: expected one of {names}, found {found}", fix="--archive-state takes every difference; the state is archived")


def chosen_brain(options: DeployOptions) -> dict[str, Any]:
    """`--connectome` over what the inventory says."""
    return {"fly_connectome": options.connectome} if options.connectome else {}


def any_gpu(chosen: hosts.Hosts) -> bool:
    """Whether a host has the GPU backend on: a plain deploy keeps it, so the release must have the feature."""
    seen = hosts.play(chosen, "look", display="none", look=True)
    return any(host.vars.get("gpu_receipt", {}).get("exists") for host in seen.hosts.values())


def take_release(options: DeployOptions, gpu: bool) -> releases.Release:
    """The tar that was given, or a build; on the way to a card with PTX for its arch in it."""
    release = releases.open_tar(options.release) if options.release else build.build(cuda=gpu)
    if not gpu:
        return release
    here = card.this_machine()
    arch = here.arch if here else LOWEST_ARCH
    if release.ptx(arch):
        return release
    with Progress(f"building PTX for {arch}"):
        return ptx.add(release, [arch], here.driver if here else "")


def names_of(options: DeployOptions, chosen: hosts.Hosts) -> set[str]:
    """The connectomes that the hosts run."""
    if not chosen.names:
        raise UsageError("no host to deploy to", fix="./fly inventory shows the hosts; ./fly provision NAME makes a container")
    return {options.connectome or str(chosen.value(host, "fly_connectome")) for host in chosen.names}


def brain(name: str, release: releases.Release) -> Mapping[str, Any]:
    """What the playbook needs of a connectome; made with the release's own flysim."""
    made = connectome.make(name, release.binary)
    return {"file": str(made.path), "name": made.name, "target": made.target_name, "neurons": made.neurons, "drive": made.default_drive}


def bundle_file() -> Any:
    """The agent as one file, for the restore unit that works without us."""
    from flyops import places
    from flyops.transport.bundle import bundle

    digest, data = bundle()
    path = places.cache("agent-bundles", f"{digest}.pyz")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
    return path


def report(options: DeployOptions, result: RunResult, version: str) -> None:
    """The five checks and one line a host."""
    for name, host in result.hosts.items():
        if not host.ok:  # a container host that was only looked at for its guest
            continue
        backend = "cuda" if options.gpu else str(host.vars.get("fly_row", {}).get("backend") or "cpu")
        found = reports.from_vars(host.vars)
        if host.vars.get("gpu_is_live") and not options.target.json:
            print(f"\n{name}: release {version} holds the GPU already, its five checks passed when it was deployed; `verify` runs them again")
        elif found or result.exit_code == EXIT_OK:
            reports.show(options.target, found, host=name, release=version, backend=backend, record=options.record, more=reports.beside(host))
        row = host.vars.get("fly_row")
        if row and not options.target.json:
            print(reports.line(row))
