# SPDX-License-Identifier: Apache-2.0
"""A host with systemd and cgroup v2 in a virtual machine (tests/beds/vm), three guests, a driver of text whose majors move at every boot.

What a machine without a card and without cpusets of cgroup v2 cannot show: `host` and its boot unit put our guest right before it starts and
leave the neighbours' files alone, `deploy --gpu` stops at check 2, the cpus of guest, slice, units and everybody else are effective, a second
run changes nothing, and a removal leaves the config as it was. About half an hour without KVM; outside CI.

VM_DIR keeps the image (the user's cache), ROOTFS names a root file system for guests, CUDA_RELEASE a prebuilt tar with the feature cuda.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from flyops import places
from flyops.domain import cpuset
from flyops.operations import rootfs

BED = places.REPOSITORY / "tests" / "beds" / "vm"
VM = Path(os.environ.get("VM_DIR") or places.cache("vm"))
PORT = os.environ.get("VM_PORT", "2301")
STEP_S = float(os.environ.get("STEP_S", "900"))
OURS, NEIGHBOURS = "fly1", ("n1", "n2")
CPUS, THREADS = "1-4", 2
os.environ.setdefault("VM_CPUS", "5")  # emulated cpus wait for each other: few are quicker than many
BASE = "/var/cache/base"
CLAIMS = """
host_gave_the_card second_host_run_changed_nothing second_guest_run_changed_nothing majors_moved_at_boot ours_right_after_boot
unit_before_our_guest open_is_allowed_after_boot stale_neighbour_is_denied neighbours_byte_identical deploy_runs_on_the_cpu
second_deploy_changed_nothing gpu_refused_at_check_2 refusal_says_what_to_do live_untouched_by_refusal guest_cpuset_effective
flysim_cpus_effective page_cpus_effective slice_of_its_own everybody_else_confined hog_named cpus_hold_after_a_neighbour_starts
cpus_right_again_after_boot deploy_kept_off_the_simulator release_gives_all_back removal_leaves_config_as_before host_removed
"""
GOALS = dict.fromkeys(CLAIMS.split(), ("==", True))

FAKECARD_UNIT = """[Unit]
Description=A driver of text
After=systemd-modules-load.service local-fs.target
Before=flyops-majors.service lxc.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /usr/local/sbin/fakecard.sh
[Install]
WantedBy=multi-user.target
"""
NEIGHBOUR = f"""# NAME: made by hand, nobody else's business
lxc.include = /usr/share/lxc/config/common.conf
lxc.uts.name = NAME
lxc.rootfs.path = overlay:{BASE}:/var/lib/lxc/NAME/up
lxc.apparmor.profile = unconfined
lxc.mount.auto = cgroup:mixed proc:mixed sys:mixed
lxc.start.auto = AUTO
lxc.net.0.type = empty
lxc.cgroup2.devices.allow = c 195:* rwm
lxc.cgroup2.devices.allow = c 508:* rwm
lxc.mount.entry = /dev/nvidia-uvm dev/nvidia-uvm none bind,optional,create=file
"""
# What a guest's open() of a node says: no driver behind it (allowed), or not permitted (the rules).
OPEN = "import errno, os\ntry:\n    os.open('/dev/nvidia-uvm', os.O_RDWR)\nexcept OSError as err:\n    print(errno.errorcode[err.errno])"
# Which cpus the agent of a deploy may use, for as long as it is there (the words are apart, so that this script is none).
WATCH = """
import glob, re, time
seen, end, quiet = set(), time.monotonic() + 600, 0
while time.monotonic() < end and quiet < 30:
    there = []
    for folder in glob.glob('/proc/[0-9]*'):
        try:
            if b'FLY' + b'OPS' in open(folder + '/cmdline', 'rb').read():
                there += glob.glob(folder + '/task/*/status')
        except OSError:
            pass
    quiet = quiet + 1 if seen and not there else 0
    for status in there:
        try:
            seen.add(re.search('Cpus_allowed_list:(.*)', open(status).read()).group(1).strip())
        except (OSError, AttributeError):
            pass
    open('/run/agent', 'w').write(' '.join(sorted(seen)))
    time.sleep(0.2)
"""
MASKS = (
    "for g in flysim.slice flysim.slice/flysim.service system.slice system.slice/flypage.service user.slice init.scope .lxc; do "
    'echo "$g $(cat /sys/fs/cgroup/$g/cpuset.cpus.effective 2>/dev/null)"; done; echo "guest $(cat /sys/fs/cgroup/cpuset.cpus.effective)"; '
    "for u in flysim flypage; do p=$(systemctl show -p MainPID --value $u); "
    "echo \"$u $(grep -h Cpus_allowed_list /proc/$p/task/*/status 2>/dev/null | sort -u | cut -f2 | tr '\\n' ' ')\"; done; "
    "echo \"state $(systemctl is-active flysim flypage | tr '\\n' ' ')\"; echo \"slice $(systemctl show -p Slice --value flysim)\""
)
PLAYS = {
    "guest": """
- name: Our guest
  hosts: vmhost
  gather_facts: false
  tasks:
    - name: Make it
      container:
        {name: fly1, state: "{{ guest_state }}", rootfs: /var/cache/base, network: none, memory: 1G, cpus: "{{ guest_cpus | string }}", gpu: "{{ guest_gpu | bool }}",
         driver: none, autostart: true, wait: 300, stop_wait: 200}
""",
    "cpus": """
- name: The cpus as they are now
  hosts: fly1
  gather_facts: false
  vars: {service_manager: systemd, fly_cpus: "", fly_encoder_cpus: 0, fly_partition_minimum: 4}
  tasks:
    - name: Ask flysim
      uri: {url: http://127.0.0.1:8700/status, timeout: 30}
      register: live
    - import_tasks: REPOSITORY/playbooks/tasks/cpus_now.yml
""",
    "release": """
- name: Give everybody else all cpus again
  hosts: fly1
  gather_facts: false
  tasks:
    - name: The drop-ins of everybody else go
      file: {path: "/etc/systemd/system/{{ item }}.d", state: absent}
      loop: [system.slice, user.slice, init.scope]
    - name: Read the units again
      systemd_service: {daemon_reload: true}
    - name: And the masks that stay behind
      cpu_confine: {state: released}
""",
}


class Bed:
    """One transcript; the machine; the command line against it."""

    def __init__(self, raw: Path) -> None:
        self.raw = raw
        self.transcript = (raw / "transcript.txt").open("w")
        self.looks: dict[str, Any] = {}
        self.work = VM / "work"  # what names places of this machine stays out of the record
        self.work.mkdir(parents=True, exist_ok=True)
        hosts = self.work / "hosts.yml"
        vmhost = {
            "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": int(PORT), "ansible_user": "root",
            "ansible_ssh_private_key_file": str(VM / "key"), "ansible_ssh_known_hosts_file": str(VM / "known_hosts"), "managed_guests": [OURS],
        }  # fmt: skip
        guest = {
            "ansible_connection": "lxc", "ansible_lxc_name": OURS, "ansible_via": "vmhost", "ansible_python_interpreter": "/usr/bin/python3",
            "fly_confine": True, "fly_checkpoint_s": 5, "rayon_threads": THREADS, "fly_speed": 0.05,  # an emulated machine holds a twentieth of real time
        }  # fmt: skip
        hosts.write_text(yaml.safe_dump({"all": {"hosts": {"vmhost": vmhost, OURS: guest}}}))
        self.hosts = hosts
        for name, text in PLAYS.items():
            (self.work / f"{name}.yml").write_text(text.replace("REPOSITORY", str(places.REPOSITORY)))

    def clean(self, text: str) -> str:
        """Where this machine keeps things is nobody's business."""
        for path, word in ((self.raw, "RAW"), (places.REPOSITORY, "."), (VM, "VM"), (f"{Path.home()}/", "~/")):
            text = text.replace(str(path), word)
        return text

    def say(self, text: str) -> None:
        """Into the transcript and onto the screen."""
        self.transcript.write(self.clean(text))
        self.transcript.flush()
        print(self.clean(text), end="", flush=True)

    def run(self, *argv: str, code: int | None = 0, shown: str = "") -> str:
        """A command with its output in the transcript."""
        began = time.monotonic()
        self.say(f"\n$ {shown or shlex.join(argv)}\n")
        done = subprocess.run(
            ["timeout", str(int(STEP_S)), *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            cwd=places.REPOSITORY,
        )
        self.say(f"{done.stdout}[exit {done.returncode} after {time.monotonic() - began:.0f} s]\n")
        if code is not None and done.returncode != code:
            raise RuntimeError(f"{shown or shlex.join(argv)}: expected exit {code}, found {done.returncode}")
        return self.clean(done.stdout)

    def vm(self, *words: str, code: int | None = 0) -> str:
        """tests/beds/vm/vm.sh."""
        return self.run("bash", str(BED / "vm.sh"), words[0], str(VM), *words[1:], code=code, shown=f"vm.sh {shlex.join(words)}")

    def host(self, script: str, code: int | None = 0) -> str:
        """A shell script on the host."""
        return self.vm("ssh", script, code=code)

    def guest(self, script: str, name: str = OURS, code: int | None = 0) -> str:
        """A shell script in a guest."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return self.host(f"lxc-attach -n {name} --clear-env -v {path} -- sh -c {shlex.quote(script)}", code=code)

    def fly(self, *words: str, code: int | None = 0) -> str:
        """`./fly …` as an operator types it."""
        limit = () if words[0] == "play" else ("--limit", "vmhost" if words[0] == "host" else OURS)
        return self.run(str(places.REPOSITORY / "fly"), *words, "--inventory", str(self.hosts), *limit, code=code)

    def play(self, name: str, *words: str, code: int | None = 0) -> str:
        """One of PLAYS."""
        return self.fly("play", str(self.work / f"{name}.yml"), *words, code=code)

    def converge(self, state: str, cpus: str = CPUS, gpu: bool = True) -> str:
        """Our guest, by the container module."""
        return self.play("guest", "-e", f"guest_state={state}", "-e", f"guest_cpus={cpus}", "-e", f"guest_gpu={gpu}")

    def keep(self, name: str, value: Any) -> Any:
        """A raw sample."""
        self.looks[name] = value
        (self.raw / "looks.json").write_text(json.dumps(self.looks, indent=1, sort_keys=True) + "\n")
        return value

    def masks(self, name: str) -> None:
        """What the kernel enforces in our guest now."""
        lines = self.guest(MASKS).splitlines()
        self.keep(name, {line.split(" ", 1)[0]: line.partition(" ")[2].strip() for line in lines if " " in line})

    def config(self, name: str) -> str:
        """A guest's config."""
        return self.host(f"cat /var/lib/lxc/{name}/config")


def neighbours(bed: Bed) -> str:
    """Digest of all that the neighbours are on the host: configs, and the names and bytes beside them."""
    return bed.host(f"cd /var/lib/lxc && sha256sum {' '.join(f'{n}/config' for n in NEIGHBOURS)} && ls -A {' '.join(NEIGHBOURS)}")


def build(bed: Bed) -> None:
    """The machine, its guests' base, the driver of text, two neighbours that are not ours."""
    base = rootfs.ensure(os.environ.get("ROOTFS", ""))
    disk = VM / "extra.ext4"
    with disk.open("wb") as stream:
        stream.truncate(2 << 30)
    bed.run("mkfs.ext4", "-q", "-F", "-d", str(base), str(disk))
    bed.vm("up", PORT)
    bed.host(f"mkdir -p {BASE} /var/lib/fakecard && echo '/dev/vdb {BASE} ext4 ro 0 0' >> /etc/fstab && systemctl daemon-reload && mount {BASE}")
    bed.vm("cp", str(BED / "fakecard.sh"), "/usr/local/sbin/fakecard.sh")
    texts = {
        "/etc/systemd/system/fakecard.service": FAKECARD_UNIT,
        **{f"/var/lib/lxc/{n}/config": NEIGHBOUR.replace("NAME", n).replace("AUTO", str(int(n == NEIGHBOURS[0]))) for n in NEIGHBOURS},
    }
    bed.host(" && ".join(f"mkdir -p /var/lib/lxc/{n}/up/etc && echo {n} > /var/lib/lxc/{n}/up/etc/hostname" for n in NEIGHBOURS))
    for path, text in texts.items():
        bed.host(f"printf %s {shlex.quote(text)} > {path}")
    bed.host("systemctl -q enable --now fakecard && grep nvidia /proc/devices")


def majors(bed: Bed) -> dict[str, int]:
    """The live ones."""
    return {name: int(number) for number, name in (line.split() for line in bed.host("grep nvidia /proc/devices").splitlines())}


def before_boot(bed: Bed) -> None:
    """Card and cpus given, twice; deploy on the CPU, twice; the GPU refused."""
    bed.converge("present", cpus="", gpu=False)
    bed.keep("config_before", bed.config(OURS))
    bed.keep("neighbours_before", neighbours(bed))
    bed.keep("host_first", bed.fly("host"))
    bed.converge("started")
    bed.keep("guest_second", bed.converge("started"))
    bed.keep("host_second", bed.fly("host"))
    bed.keep("config_given", bed.config(OURS))
    bed.keep("majors_first", majors(bed))
    release = ["--release", os.environ["CUDA_RELEASE"]] if os.environ.get("CUDA_RELEASE") else []
    bed.keep("deploy", bed.fly("deploy", *release))
    bed.masks("masks")
    bed.guest(f"systemd-run -q --unit=agentwatch python3 -c {shlex.quote(WATCH)}")
    bed.keep("deploy_second", bed.fly("deploy", *release))
    bed.keep("agent", bed.guest("cat /run/agent"))
    pid = "systemctl show -p MainPID --value flysim; cat /etc/fly/backend.env | sha256sum"
    bed.keep("live_before", bed.guest(pid))
    bed.keep("gpu", bed.fly("deploy", "--gpu", *release, code=3))
    bed.keep("live_after", bed.guest(pid))


def cpus_held(bed: Bed) -> None:
    """A hog is named, and named no more when it is gone; a neighbour that starts changes nothing."""
    bed.guest("systemd-run -q --unit=hog --slice=hog.slice sleep 1000")
    bed.keep("hog", bed.play("cpus", code=None))
    bed.guest("systemctl stop hog")
    bed.host(f"lxc-start -n {NEIGHBOURS[0]}; lxc-wait -n {NEIGHBOURS[0]} -s RUNNING -t 120; sleep 20")
    bed.keep("neighbour_started", bed.play("cpus", code=None))
    bed.masks("masks_neighbour")


def booted(bed: Bed) -> None:
    """The majors have moved; our guest starts by itself, after the unit has put its rules right."""
    bed.host(f"for n in {OURS} {' '.join(NEIGHBOURS)}; do lxc-stop -n $n -t 60; done; sync", code=None)
    bed.vm("reboot")
    names = " ".join((OURS, *NEIGHBOURS))
    wait = f'for i in $(seq 300); do n=0; for g in {names}; do [ "$(lxc-info -n $g -s -H)" = RUNNING ] && n=$((n+1)); done; [ $n = 2 ] && break; sleep 1; done'
    bed.host(f"{wait}; lxc-ls -f; systemctl --no-pager status flyops-majors.service | head -20")
    bed.guest(
        'for i in $(seq 300); do [ "$(systemctl is-active flysim flypage | sort -u)" = active ] && break; sleep 1; done; systemctl is-active flysim flypage'
    )
    bed.keep("majors_boot", majors(bed))
    bed.keep("config_boot", bed.config(OURS))
    bed.keep("neighbours_boot", neighbours(bed))
    monotonic = "systemctl show -p ExecMainExitTimestampMonotonic --value flyops-majors.service; awk '{print $22}' /proc/$(lxc-info -n fly1 -p -H)/stat; getconf CLK_TCK"
    bed.keep("order", bed.host(monotonic).split())
    bed.keep("open_ours", bed.guest(f"python3 -c {shlex.quote(OPEN)}"))
    bed.keep("open_neighbour", bed.guest(f"python3 -c {shlex.quote(OPEN)}", name=NEIGHBOURS[0]))
    bed.masks("masks_boot")
    bed.keep("verify_boot", bed.play("cpus", code=None))


def removed(bed: Bed) -> None:
    """Everybody has all cpus again; card and cpus go from the config; the host forgets us."""
    bed.play("release")
    bed.masks("masks_released")
    bed.host(f"lxc-stop -n {OURS} -t 60", code=None)
    bed.converge("present", cpus="", gpu=False)
    bed.keep("config_removed", bed.config(OURS))
    bed.keep("host_removed", bed.fly("host", "--remove"))
    bed.keep("host_left", bed.host("ls /etc/systemd/system/flyops* /etc/udev/rules.d/*flyops* /var/lib/flyops/majors* 2>/dev/null; true"))
    bed.keep("neighbours_after", neighbours(bed))


def measure(raw: Path) -> None:
    """All of it, in order."""
    bed = Bed(raw)
    try:
        for step in (build, before_boot, cpus_held, booted, removed):
            bed.say(f"\n# {step.__name__}: {step.__doc__}\n")
            step(bed)
    finally:
        bed.vm("down", code=None)


def changed(said: str) -> int:
    """Of all hosts of a recap (a container host that was only looked at has a line of its own); -1 without one."""
    found = re.findall(r"changed=(\d+)", said)
    return sum(map(int, found)) if found else -1


def rules(config: str) -> set[str]:
    """Majors that a config opens."""
    return set(re.findall(r"devices\.allow = c (\d+):", config))


def same(text: str, cpus: str) -> bool:
    """Whether every list in a text is that set."""
    return bool(text.split()) and all(set(cpuset.parse(one)) == set(cpuset.parse(cpus)) for one in text.split())


def masks_ok(masks: dict[str, str]) -> dict[str, bool]:
    """The five claims about cpus, by what the kernel says."""
    sim, other = cpuset.render(cpuset.parse(CPUS)[:THREADS]), cpuset.render(cpuset.parse(CPUS)[THREADS:])
    return {
        "guest": same(masks.get("guest", ""), CPUS),
        "flysim": same(masks.get("flysim", ""), sim) and same(masks.get("flysim.slice/flysim.service", ""), sim),
        "page": same(masks.get("flypage", ""), other) and same(masks.get("system.slice/flypage.service", ""), other),
        "slice": masks.get("slice") == "flysim.slice" and same(masks.get("flysim.slice", ""), sim),
        "else": all(same(masks.get(name, ""), other) for name in ("system.slice", "user.slice", "init.scope")),
    }


def figures(raw: Path) -> dict[str, Any]:
    """Each claim out of the looks alone."""
    try:
        looks: dict[str, Any] = json.loads((raw / "looks.json").read_text())
    except (OSError, ValueError):
        looks = {}
    said = {name: value if isinstance(value, str) else "" for name, value in looks.items()}
    text = {name: said.get(name, "") for name in ("hog", "neighbour_started", "verify_boot", "gpu", "deploy", "host_left", "host_removed")}
    first, boot = looks.get("majors_first", {}), looks.get("majors_boot", {})
    held, after = masks_ok(looks.get("masks", {})), masks_ok(looks.get("masks_boot", {}))
    order = [int(word) for word in looks.get("order", []) if str(word).isdigit()]
    dynamic = {str(boot.get(name, "")) for name in ("nvidia-uvm", "nvidia-caps")}
    # `work` is what LXC itself makes beside `up` when the bed starts a guest on an overlay.
    neighbours_seen = {said.get(f"neighbours_{when}", when).replace("\nwork\n", "\n") for when in ("before", "boot", "after")}
    released = looks.get("masks_released", {})
    return {
        "majors": [first, boot],
        "masks": looks.get("masks", {}),
        "host_gave_the_card": changed(said.get("host_first", "")) > 0
        and {"195", *(str(first.get(n)) for n in ("nvidia-uvm", "nvidia-caps"))} <= rules(said.get("config_given", "")),
        "second_host_run_changed_nothing": changed(said.get("host_second", "")) == 0,
        "second_guest_run_changed_nothing": changed(said.get("guest_second", "")) == 0,
        "majors_moved_at_boot": bool(boot) and first != boot,
        "ours_right_after_boot": bool(boot) and rules(said.get("config_boot", "")) == {"195", *dynamic},
        "unit_before_our_guest": len(order) == 3 and 0 < order[0] / 1e6 <= order[1] / order[2] + 0.011,
        "open_is_allowed_after_boot": said.get("open_ours", "").strip() == "ENXIO",
        "stale_neighbour_is_denied": said.get("open_neighbour", "").strip() == "EPERM",
        "neighbours_byte_identical": len(neighbours_seen) == 1,
        "deploy_runs_on_the_cpu": changed(text["deploy"]) > 0 and looks.get("masks", {}).get("state") == "active active",
        "second_deploy_changed_nothing": changed(said.get("deploy_second", "")) == 0,
        "gpu_refused_at_check_2": bool(re.search(r"^2 The container sees the card +FAILED", text["gpu"], re.MULTILINE))
        and text["gpu"].count("not reached") >= 3,
        "refusal_says_what_to_do": "to do" in text["gpu"].lower(),
        "live_untouched_by_refusal": bool(said.get("live_before")) and said.get("live_before") == said.get("live_after"),
        "guest_cpuset_effective": held["guest"] and after["guest"],
        "flysim_cpus_effective": held["flysim"],
        "page_cpus_effective": held["page"],
        "slice_of_its_own": held["slice"],
        "everybody_else_confined": held["else"] and same(looks.get("masks", {}).get(".lxc", ""), cpuset.render(cpuset.parse(CPUS)[THREADS:])),
        "hog_named": "sleep (pid" in text["hog"] and "hog.slice" in text["hog"] and "failed=1" in text["hog"],
        "cpus_hold_after_a_neighbour_starts": "failed=0" in text["neighbour_started"] and all(masks_ok(looks.get("masks_neighbour", {})).values()),
        "cpus_right_again_after_boot": "failed=0" in text["verify_boot"] and all(after.values()),
        "deploy_kept_off_the_simulator": same(said.get("agent", ""), cpuset.render(cpuset.parse(CPUS)[THREADS:])),
        "release_gives_all_back": all(same(released.get(name, ""), CPUS) for name in ("system.slice", "user.slice", "init.scope", ".lxc")),
        "removal_leaves_config_as_before": bool(said.get("config_before"))
        and said.get("config_before") == said.get("config_removed") != said.get("config_given"),
        "host_removed": changed(text["host_removed"]) > 0 and not text["host_left"].strip(),
    }
