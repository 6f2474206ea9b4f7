# SPDX-License-Identifier: Apache-2.0
"""What known failure texts and codes mean: text or code -> cause -> remedy. One table; checks, start failures and docs/symptoms.md read it. Pure.

A text is written as the program prints it; `…` stands for anything, blanks for any blanks or line ends. The first entry that fits is the
answer, so the particular ones stand before the general ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping, Pattern, Tuple


@dataclass(frozen=True)
class Symptom:
    """A failure as it is seen, why, and what to do about it. `where`: who prints it; `code`: the number that goes with it."""

    where: str
    says: str
    cause: str
    remedy: str
    code: str = ""

    @property
    def pattern(self) -> Pattern[str]:
        """For searching a log."""
        pieces = (r"\s+".join(re.escape(word) for word in piece.split(" ")) for piece in self.says.strip("…").split("…"))
        return re.compile(".{0,200}?".join(pieces), re.IGNORECASE | re.DOTALL)

    @property
    def advice(self) -> str:
        """Cause and remedy in one sentence."""
        return f"{self.cause}; to do: {self.remedy}"


RULES = "the device rule of the guest or unit does not open the node: a bind alone gives a path, not the right to open it"
NO_CGROUPS = "in a guest of its own user namespace the tool may not write device rules"
SET_NO_CGROUPS = "set no-cgroups = true in the guest's /etc/nvidia-container-runtime/config.toml; the outer guest's rules open the nodes"
AGAIN = "give the guest the card again: invoke provision NAME --gpu"
LOAD = "on the host: invoke host (loads the modules, makes the nodes), then start the guest"
LOCKSTEP = "put the guest's libraries in lockstep with the loaded module: invoke driver --limit NAME"

SMI, LIBCUDA, CLI, LXC, PVE, INCUS = "nvidia-smi, NVML", "CUDA", "nvidia-container-cli", "LXC", "Proxmox VE", "Incus, LXD"
KERNEL, INSTALLER, ENGINE, UNIT, PACKAGES = "kernel log", "driver installer (.run)", "Docker, podman", "systemd, a program that opens a node", "apt"

_ROWS: Tuple[Tuple[str, ...], ...] = (
    # kernel log: the module itself says what it is
    (KERNEL, "API mismatch: the client has the version … but … this kernel module has the version",
     "the libraries that a program loaded are of another version than the loaded module (the last part of the version counts)", LOCKSTEP),
    (KERNEL, "The NVIDIA probe routine was not called for", "another driver (nouveau, vfio-pci) holds the card", "blacklist nouveau on the host and boot again"),
    (KERNEL, "has fallen off the bus", "the card no longer answers on PCIe (Xid 79)", "reboot the host; when it comes back: power, riser, cooling"),
    (KERNEL, "RmInitAdapter failed", "the module cannot start the card", "look at the lines before it; reboot the host; a module older than the card does that, too"),
    (KERNEL, "NV_WARN_NOTHING_TO_DO", "the fabric manager on a board without NVSwitches: normal", "disable nvidia-fabricmanager there; nothing is wrong"),
    # nvidia-container-cli
    (CLI, "detection error: open failed", "the container toolkit on the host is older than the driver and looks for a file that this driver no longer has",
     "install a toolkit of the driver's time; the file is named behind the text"),
    (CLI, "driver rpc service terminated with signal 15", "the nodes are closed for others (0660), and the tool's helper runs as nobody",
     "DeviceFileMode=0666 for the nvidia module on the host, make the nodes again: invoke host"),
    (CLI, "nvml error: driver not loaded", "the kernel module is not loaded on the host", LOAD),
    (CLI, "bpf_prog_query(BPF_CGROUP_DEVICE)", NO_CGROUPS, SET_NO_CGROUPS),
    (CLI, "last insn is not an exit or jmp", "an old libnvidia-container on a newer kernel with cgroup v2; the card is well", "upgrade the container toolkit"),
    (CLI, "load program: invalid argument", "an old libnvidia-container on a newer kernel with cgroup v2; the card is well", "upgrade the container toolkit"),
    (CLI, "load program: permission denied", "an old libnvidia-container on a newer kernel with cgroup v2; the card is well", "upgrade the container toolkit"),
    (CLI, "devices.allow: operation not permitted", NO_CGROUPS, SET_NO_CGROUPS),
    (CLI, "invalid device node", "a node of the host has another number than the loaded module gave out", "on the host: invoke host"),
    (CLI, "nvidia-persistenced/socket: no such device or address", "the host's whole /run is bound over the guest's, or the socket is there already",
     "do not bind /run; bind the one socket, and only where it is missing"),
    (CLI, "mount error: file creation failed: …: file exists", "libraries of a driver are baked into the image",
     "take them out of the image (they are named: lib….so.VERSION); they come from the host"),
    (CLI, "requirement error: unsatisfied condition: cuda", "the image wants a newer CUDA than the host's driver has", "a newer driver on the host, or an older image"),
    (CLI, "ldcache error: open failed: /sbin/ldconfig.real", "that name of ldconfig is Ubuntu's", 'set ldconfig = "@/sbin/ldconfig" in the toolkit\'s config.toml'),
    (CLI, "load library failed: libnvidia-ml.so.1", "the host's own linker does not know the driver's libraries", "install the driver's libraries on the host, run ldconfig there"),
    (CLI, "device error: …: unknown device", "NVIDIA_VISIBLE_DEVICES names a card that is not there", "name an index or UUID that nvidia-smi -L shows"),
    # Incus, LXD
    (INCUS, "nvidia.runtime is incompatible with privileged containers", "the NVIDIA hook works in a user namespace only", "security.privileged=false, or the card without nvidia.runtime"),
    (INCUS, "The NVIDIA LXC hook couldn't be found", "LXC's hooks/nvidia is not on the host", "install LXC's hooks (package lxc, or lxc-utils)"),
    (INCUS, "The NVIDIA container tools couldn't be found", "nvidia-container-cli is not on the host", "install libnvidia-container-tools on the host"),
    (INCUS, "Invalid PCI address (no device found)", "the gpu device names a card that is not (or no longer) in that slot", "incus info --resources shows what there is; converge again, the address comes from the UUID"),
    (INCUS, "Failed to detect requested GPU device", "no card of the host fits the id, pci address or vendor that the gpu device asks for", "incus info --resources shows what there is"),
    (INCUS, "The MIG device … not found", "that instance of the card does not exist (any more)", "nvidia-smi mig -lgi on the host"),
    # LXC
    (LXC, "only works in unprivileged mode", "LXC's NVIDIA hook refuses a privileged guest", "an unprivileged guest, or the card by nodes and rules (gpu: true), without the hook"),
    (LXC, "Failed to create cpumask for offline cpus", "cgroup v1: the guest asks for cpus that are offline", "ask only for cpus in /sys/devices/system/cpu/online"),
    (LXC, "cpuset.cpus … Invalid argument", "the guest asks for cpus that this host does not have or has offline", "ask only for cpus in /sys/devices/system/cpu/online"),
    (LXC, 'Failed to mount "/dev/nvidia', "a node that the guest's config binds is not on the host, and the line is not optional", LOAD),
    (LXC, 'Failed to mount … "/dev/nvidia', "a node that the guest's config binds is not on the host, and the line is not optional", LOAD),
    (LXC, "Failed to run mount hooks", "a hook failed (with nvidia.runtime: nvidia-container-cli), and its own words are lost",
     "run the hook's command by hand with -k -d /dev/stderr and look at the first line that begins with E or W"),
    (LXC, "Script exited with status 1", "a hook failed (with nvidia.runtime: nvidia-container-cli), and its own words are lost",
     "run the hook's command by hand with -k -d /dev/stderr and look at the first line that begins with E or W"),
    (PVE, "Device /dev/nvidia… does not exist", "a devN: entry names a node that is not on the host, and such an entry is never optional", LOAD),
    # installer
    (INSTALLER, "NVIDIA kernel module '…' appears to already be loaded", "the installer was about to do its kernel part, which a guest shares with its host",
     "run it with --no-kernel-modules (nvidia_driver does)"),
    (INSTALLER, "The Nouveau kernel driver is currently in use", "the host still runs nouveau", "blacklist nouveau on the host and boot again"),
    (INSTALLER, "You appear to be running an X server", "a display server runs", "--no-x-check, or stop it"),
    (INSTALLER, "Unable to find the kernel source tree", "the installer was about to build the kernel part, which a guest shares with its host", "run it with --no-kernel-modules"),
    (INSTALLER, "Unable to load the kernel module", "the installer was about to load the kernel part, which a guest shares with its host", "run it with --no-kernel-modules"),
    (INSTALLER, "alternate method of installing the NVIDIA driver", "the driver is here as packages, too", "remove the packages, or use strategy: package"),
    (INSTALLER, "Read-only file system", "files of the driver are bound into this guest read-only: two strategies at once", "one of them: take the binds out of the guest's config, or keep strategy: bind"),
    (INSTALLER, "Error in MD5 checksums", "the .run file is not whole", "copy it again; compare its sha256 with the publisher's"),
    (INSTALLER, "Error in check sums", "the .run file is not whole", "copy it again; compare its sha256 with the publisher's"),
    (INSTALLER, "No space left on device", "the disk of the guest is full (the installer needs about 1 GiB in /tmp)", "make room"),
    (INSTALLER, "nvidia-installer must be run as root", "the agent is an ordinary user", "become: true"),
    # Docker, podman
    (ENGINE, "unresolvable CDI devices", "the engine does not find the name in a CDI spec: no spec, not readable (0600), another folder, or a version it does not know",
     "make the spec again in /run/cdi with mode 0644 (cdi_spec); podman >= 4.1"),
    (ENGINE, "error stat'ing file", "the CDI spec names a file of a driver that is gone", "make the spec again (cdi_spec); one in /run goes with the boot"),
    (ENGINE, 'could not select device driver "" with capabilities: [[gpu', "the container toolkit is not set up for this engine", "install it, nvidia-ctk runtime configure, restart the engine"),
    # a program that opens a node
    (UNIT, "lstat /dev/nvidia-uvm…: no such file or directory", "the guest or engine started before anything had made the node (the module makes it at first use)", LOAD),
    (UNIT, "/dev/nvidia…: Operation not permitted", RULES, "both: the bind, and DeviceAllow= or devices.allow with the live major, in the unit's or guest's own config"),
    (UNIT, "/dev/nvidia…: Permission denied", "mode or group of the node keeps this user out (in a guest of its own user namespace the owner shows as nobody; the mode decides)",
     "mode 0666 for compute nodes (invoke host), or a gid of the guest's"),
    (UNIT, "/dev/nvidia…: No such device or address", "the node's number is not the loaded module's: it is stale, or the module is not loaded", "on the host: invoke host; then start the guest again"),
    # nvidia-smi
    (SMI, "Driver/library version mismatch", "the libraries here and the loaded module are of different versions", LOCKSTEP, "NVML 18, CUDA 803"),
    (SMI, "GPU access blocked by the operating system", "the view of /proc and /sys is not complete (a unit's ProtectKernelTunables, PrivateDevices), or a device rule forbids the node",
     "look at the unit's sandbox, then at the rule", "NVML 17"),
    (SMI, "Function Not Found", "nvidia-smi and libnvidia-ml here are of different versions", LOCKSTEP, "NVML 13"),
    (SMI, "No devices were found", "nodes missing, plain files in their place, or not readable by this user", "flysim_check card names each; then " + AGAIN, "NVML 6, CUDA 100"),
    (SMI, "couldn't communicate with the NVIDIA driver", "the kernel module is not loaded on the host, or /proc/driver/nvidia is not visible here", LOAD, "NVML 9"),
    (SMI, "couldn't find libnvidia-ml.so", "the driver's libraries are not in this guest, or not in its linker's cache", LOCKSTEP + " (or ldconfig there)", "NVML 12"),
    (SMI, "Driver Not Loaded", "the kernel module is not loaded, or was not yet when this started", "order it after the module: " + LOAD, "NVML 9"),
    (SMI, "Insufficient Permissions", "this user may not open the node", "mode 0666 for compute nodes (invoke host)", "NVML 4"),
    (SMI, "GPU is lost", "the card no longer answers (Xid 79)", "reboot the host", "NVML 15"),
    (SMI, "Unable to determine the device handle for …: Unknown Error", "the card no longer answers", "look for Xid in the host's kernel log", "NVML 999"),
    (SMI, "Failed to initialize NVML: Unknown Error", "the device rule was rebuilt without the card (a daemon-reload does that to rules that were only injected)",
     "put the rule into the unit's or guest's own config, and start it again", "NVML 999"),
    (SMI, "NVMLError_Unknown", "the device rule was rebuilt without the card (a daemon-reload)", "put the rule into the unit's or guest's own config, and start it again", "NVML 999"),
    # CUDA, by text; by number below
    (LIBCUDA, "forward compatibility was attempted on non supported HW", "a compat libcuda, or libraries of another version", "take the compat library out; " + LOCKSTEP, "CUDA 804"),
    (LIBCUDA, "unsupported display driver / cuda driver combination", "the libraries here and the loaded module are of different versions", LOCKSTEP, "CUDA 803"),
    (LIBCUDA, "system not yet initialized", "an NVSwitch board whose fabric manager is absent or of another version", "start nvidia-fabricmanager of the driver's version on the host", "CUDA 802"),
    (LIBCUDA, "no CUDA-capable device is detected", "no usable card here", AGAIN, "CUDA 100"),
    (LIBCUDA, "CUDA driver version is insufficient for CUDA runtime version", "the driver is older than the program's CUDA, or only a stub of libcuda was found",
     "a newer driver, or a program of an older toolkit", "CUDA 35"),
    (LIBCUDA, "CUDA…unknown error", "/dev/nvidia-uvm is missing, stale or not allowed (NVML works without it, CUDA does not)", "make the nodes again (invoke host) and allow nvidia-uvm's major", "CUDA 999, 30"),
    # the general ones
    (PACKAGES, "Held packages were changed", "a package is held, and something wants to change it", "strategy: package changes its own holds; for others apt-mark unhold"),
    (LXC, 'Received container state "ABORTING" instead of "RUNNING"', "the guest ended while it started", "the cause is in the lines before this one in its log"),
    (LXC, "Failed to setup container", "the guest ended while it started", "the cause is in the lines before this one in its log"),
)  # fmt: skip
SYMPTOMS: Tuple[Symptom, ...] = tuple(Symptom(*row) for row in _ROWS)
_PATTERNS = tuple((symptom.pattern, symptom) for symptom in SYMPTOMS)


def find(text: str) -> Symptom | None:
    """The first entry that fits a text; None when nothing known is in it."""
    return next((symptom for pattern, symptom in _PATTERNS if pattern.search(text)), None)


def every(text: str) -> Tuple[Symptom, ...]:
    """All entries that fit a text, the particular ones first."""
    return tuple(symptom for pattern, symptom in _PATTERNS if pattern.search(text))


def hint(text: str) -> str:
    """Cause and remedy for a known failure text; empty when it is not known."""
    found = find(text)
    return found.advice if found else ""


CUDA_ERRORS: Mapping[int, Tuple[str, str, str]] = {
    0: ("success", "", ""),
    2: ("out of memory", "another process holds the card's memory", "look at nvidia-smi on the host for who holds it"),
    3: ("not initialised", "cuInit was not reached", "see the first error"),
    30: ("unknown error (runtime API)", "/dev/nvidia-uvm is missing, stale or not allowed", "make the nodes again (invoke host) and allow its major"),
    35: ("insufficient driver (runtime API)", "the driver is older than the program's CUDA", "a newer driver, or a program of an older toolkit"),
    100: ("no device", "no usable card: no /dev/nvidiaN here, or the device rule forbids it", "give the guest the card: invoke provision NAME --gpu"),
    101: ("invalid device", "FLY_GPU names a card that is not there", "name an index or UUID that is"),
    209: ("no binary for this card", "the program was built for other architectures", "build PTX for it: invoke ptx --arch sm_XX"),
    218: ("invalid PTX", "the file is damaged, or not PTX", "build it again: invoke ptx"),
    221: ("JIT compiler not found", "libnvidia-ptxjitcompiler of this driver is not in the guest", LOCKSTEP),
    222: (
        "unsupported PTX version",
        "the driver is older than the compiler that wrote the PTX",
        "invoke ptx --driver VERSION writes what it can read",
    ),
    304: ("operating system call failed", "the device rule or a missing node", AGAIN),
    719: ("launch failure", "the card reported a fault", "look for Xid in the host's kernel log"),
    801: ("not supported", "seen on Jetson for a user outside the group of nvmap and nvhost", "run on a discrete card"),
    802: (
        "system not yet initialised",
        "an NVSwitch board whose fabric manager is absent or of another version",
        "start nvidia-fabricmanager of the driver's version on the host",
    ),
    803: ("system driver mismatch", "the libraries here and the loaded module differ", LOCKSTEP),
    804: (
        "forward compatibility on unsupported hardware",
        "a compat libcuda, or libraries of another version",
        f"take the compat library out; {LOCKSTEP}",
    ),
    999: (
        "unknown error",
        "/dev/nvidia-uvm is missing, stale or not allowed (NVML works without it, CUDA does not)",
        "make the nodes again (nvidia_nodes) and allow nvidia-uvm's major",
    ),
}
NVML_ERRORS: Mapping[int, Tuple[str, str, str]] = {
    3: ("not supported", "this card or driver lacks the function", "nothing is wrong when only a value is [N/A]"),
    4: ("no permission", "this user may not open the node", "mode 0666 for compute nodes (invoke host)"),
    6: ("not found", "no card can be seen here", AGAIN),
    8: ("insufficient power", "the card's power cables", "plug them in"),
    9: ("driver not loaded", "the kernel module is not loaded on the host", LOAD),
    12: ("library not found", "libnvidia-ml is not in this guest, or not in its linker's cache", LOCKSTEP),
    13: ("function not found", "nvidia-smi and libnvidia-ml here are of different versions", LOCKSTEP),
    15: ("GPU is lost", "the card no longer answers (Xid 79)", "reboot the host"),
    17: ("blocked by the operating system", "a device rule or sandbox forbids the node", "look at the unit's sandbox, then at the rule"),
    18: ("driver and library mismatch", "the libraries here and the loaded module are of different versions", LOCKSTEP),
    999: ("unknown error", "the device rule was rebuilt without the card (a daemon-reload)", "set the rule in the unit's or guest's own config"),
}
XIDS: Mapping[int, Tuple[str, str]] = {
    13: ("a program did something illegal on the card", "look at the program first"),
    31: ("a program touched memory that is not its own", "look at the program first"),
    43: ("a program's channel was stopped", "look at the program first"),
    45: ("a program's work was cut off, mostly after another Xid or a kill", "look at the Xid before it"),
    48: ("a memory error that ECC could not mend", "reset the card; when it repeats, have it replaced"),
    61: ("the card's own controller stopped", "reset the card"),
    62: ("the card's own controller stopped", "reset the card"),
    63: ("a row of memory is remapped", "reset the card when it is idle"),
    64: ("a row of memory could not be remapped", "have the card replaced"),
    74: ("an NVLink fault", "look at the link and at the fabric manager"),
    79: ("the card has fallen off the bus", "reboot the host; then power, riser, cooling"),
    94: ("a memory error, kept to one program", "start that program again"),
    95: ("a memory error that may have reached others", "reset the card"),
    119: ("the card's system processor (GSP) did not answer", "reset the card; a driver update where it repeats"),
    120: ("the card's system processor (GSP) failed", "reset the card; a driver update where it repeats"),
}


def _told(family: str, code: int, table: Mapping[int, Tuple[str, str, str]], elsewhere: str) -> str:
    name, cause, remedy = table.get(code, ("", "", ""))
    if not name:
        return f"{family} error {code}: look it up in {elsewhere}"
    return f"{family} error {code}, {name}" + (f": {cause}; to do: {remedy}" if cause else "")


def cuda_error(code: int) -> str:
    """A CUDA driver code as cause and remedy."""
    return _told("CUDA", code, CUDA_ERRORS, "cuda.h (CUresult)")


def nvml_error(code: int) -> str:
    """An NVML code as cause and remedy; nvidia-smi ends with the same numbers."""
    return _told("NVML", code, NVML_ERRORS, "nvml.h (nvmlReturn_t)")


def smi(rc: int, text: str) -> str:
    """What a run of nvidia-smi says about the guest: empty when all is well. Text before code: the codes differ between versions."""
    known = hint(text)
    if known or rc == 0:
        return known
    return nvml_error(rc) if rc in NVML_ERRORS else f"nvidia-smi ended with {rc}: {text.strip()[-200:] or 'no words'}"


API_MISMATCH = re.compile(r"the client has the version (\S+?),? but.*?this kernel module has the version (\d+\.\d+(?:\.\d+)?)", re.DOTALL)
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")


def api_mismatch(dmesg: str) -> tuple[str, str] | None:
    """(client, module) versions of the last `NVRM: API mismatch` in a kernel log."""
    found = API_MISMATCH.findall(dmesg)
    return found[-1] if found else None


def xids(dmesg: str) -> Tuple[Tuple[str, int, str], ...]:
    """(bus, number, cause and remedy) of each Xid in a kernel log, in its order; an unknown number is told, too."""
    out = []
    for bus, number in XID.findall(dmesg):
        cause, remedy = XIDS.get(int(number), ("not in our table", "look it up in NVIDIA's list of Xid errors"))
        out.append((bus, int(number), f"Xid {number}: {cause}; to do: {remedy}"))
    return tuple(out)
