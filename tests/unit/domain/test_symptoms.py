# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from flyops.domain import symptoms

# (number of the case, what is printed, a word of the cause, a word of the remedy). All values are made up.
TEXTS = [
    ("case-04", "Error: lstat /dev/nvidia-uvm: no such file or directory", "before anything had made the node", "invoke host"),
    ("case-04-tools", "lstat /dev/nvidia-uvm-tools: no such file or directory", "before anything had made the node", "invoke host"),
    ("case-13", 'failed to initialize NVML: Driver Not Loaded"', "not yet when this started", "after the module"),
    ("case-14", "CUDA init failed: unknown error", "nvidia-uvm is missing", "allow nvidia-uvm"),
    ("case-19", "NVRM: API mismatch: the client has the version 570.148.06, but\nNVRM: this kernel module has the version 570.148.08.  Please", "last part", "lockstep"),
    ("case-21", "nvidia-container-cli: mount error: file creation failed: /srv/r/usr/lib/libnvidia-ml.so.1: file exists", "baked into the image", "take them out"),
    ("case-23", "ERROR: An NVIDIA kernel module 'nvidia-uvm' appears to already be loaded in your kernel.", "kernel part", "--no-kernel-modules"),
    ("case-24", "nvidia-container-cli: detection error: open failed: /usr/lib/libnvidia-madeup.so.999.1: no such file or directory", "toolkit", "install a toolkit"),
    ("case-25", "ERROR: The Nouveau kernel driver is currently in use by your system.", "nouveau", "blacklist"),
    ("case-26-nvml", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126", "different versions", "lockstep"),
    ("case-26-804", "Error 804: forward compatibility was attempted on non supported HW", "compat libcuda", "take the compat"),
    ("case-27", "Failed to initialize NVML: Unknown Error", "daemon-reload", "own config"),
    ("case-29", "nvidia-container-cli: mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown", "user namespace", "no-cgroups"),
    ("case-30-insn", "failed to add device rules: load program: invalid argument: last insn is not an exit or jmp\nprocessed 0 insns", "the card is well", "upgrade the container toolkit"),
    ("case-30-arg", "nvidia-container-cli: mount error: failed to add device rules: unable to load program: invalid argument", "the card is well", "upgrade the container toolkit"),
    ("case-30-perm", "failed to load program: permission denied", "the card is well", "upgrade the container toolkit"),
    ("case-31", "nvidia-container-cli: mount error: write error: /sys/fs/cgroup/devices/x/devices.allow: operation not permitted", "user namespace", "no-cgroups"),
    ("case-34", "cannot open /dev/nvidia0: Operation not permitted", "a bind alone", "DeviceAllow"),
    ("case-34-proc", "Failed to initialize NVML: GPU access blocked by the operating system", "/proc and /sys", "sandbox"),
    ("case-35", "error: This hook currently only works in unprivileged mode", "privileged guest", "unprivileged"),
    ("case-35-incus", "Error: Failed to create: nvidia.runtime is incompatible with privileged containers", "user namespace", "security.privileged=false"),
    ("case-36", "lxc d1 20261101 ERROR conf - ../src/lxc/conf.c:run_buffer:1 - Script exited with status 1\nlxc d1 ERROR start - Failed to setup container", "its own words are lost", "E or W"),
    ("case-36-hooks", "ERROR conf - Failed to run mount hooks", "nvidia-container-cli", "by hand"),
    ("case-37", "nvidia-container-cli: initialization error: driver rpc error: driver rpc service terminated with signal 15", "nobody", "DeviceFileMode"),
    ("case-38", "Error: Failed to start device \"gpu\": The NVIDIA container tools couldn't be found", "nvidia-container-cli is not on the host", "install"),
    ("case-38-none", "Failed to detect requested GPU device", "no card of the host fits", "incus info"),
    ("case-38-pci", 'Failed to start device "g0": Invalid PCI address (no device found): 0000:0f:00.0', "in that slot", "converge again"),
    ("case-41", "nvidia-container-cli: initialization error: nvml error: driver not loaded", "not loaded on the host", "invoke host"),
    ("case-46", "/dev/nvidiactl: Permission denied", "keeps this user out", "0666"),
    ("case-46-none", "No devices were found", "plain files", "provision"),
    ("case-50", 'lxc-start: d1: utils.c: No such file or directory - Failed to mount "/dev/nvidia0" onto "/usr/lib/x/lxc/rootfs/dev/nvidia0"', "not optional", "invoke host"),
    ("case-52", "nvidia-container-cli: mount error: open failed: /srv/r/run/nvidia-persistenced/socket: no such device or address", "/run is bound", "one socket"),
    ("case-54", "RuntimeError: Error 802: system not yet initialized", "NVSwitch", "nvidia-fabricmanager"),
    ("case-54-normal", "fabricmanager[7]: request failed with NV_WARN_NOTHING_TO_DO", "normal", "nothing is wrong"),
    ("case-55", "Error: error stat'ing file /lib/x/libEGL_nvidia.so.535.1.2: no such file", "a driver that is gone", "spec again"),
    ("case-56", "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0", "0600", "/run/cdi"),
    ("case-59", "cgfsng - ../src/lxc/x.c:cpuset1_cpus_initialize:1 - Invalid argument - Failed to create cpumask for offline cpus", "offline", "online"),
    ("not-loaded", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure", "not loaded on the host", "invoke host"),
    ("no-library", "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", "linker's cache", "ldconfig"),
    ("function", "Failed to initialize NVML: Function Not Found", "different versions", "lockstep"),
    ("aborting", 'lxccontainer.c:wait_on_daemonized_start:1 - Received container state "ABORTING" instead of "RUNNING"', "ended while it started", "lines before"),
    ("pve", "Device /dev/nvidia1 does not exist", "devN:", "invoke host"),
    ("held", "E: Held packages were changed and -y was used without --allow-change-held-packages.", "held", "unhold"),
    ("stale", "failed to open /dev/nvidia-uvm: No such device or address", "stale", "invoke host"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cause", "remedy"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_texts_lead_to_cause_and_remedy(text: str, cause: str, remedy: str) -> None:
    found = symptoms.find(text)
    assert found is not None
    assert cause in found.cause
    assert remedy in found.remedy
    assert symptoms.hint(text) == f"{found.cause}; to do: {found.remedy}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "all fine",
        "GPU 0: Made Up 9000 (UUID: GPU-00000000-0000-0000-0000-000000000000)",
        "nvidia-uvm: Loaded the UVM driver in 8 mode, major device number 239",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 240",
        "ls: /srv/data: Permission denied",  # no node of the driver's
        "open /dev/fuse: Operation not permitted",
        "CUDA is here.\n" + 300 * "x" + "\nunknown error elsewhere",  # two lines that have nothing to do with each other
    ],
)
def test_what_is_no_symptom_has_no_hint(text: str) -> None:
    assert symptoms.find(text) is None
    assert symptoms.hint(text) == ""


def test_the_particular_stands_before_the_general() -> None:
    log = (
        "lxc d1 ERROR utils - nvidia-container-cli: initialization error: nvml error: driver not loaded\n"
        "lxc d1 ERROR conf - Failed to run mount hooks\nlxc d1 ERROR start - Failed to setup container\n"
        'lxc d1 ERROR lxccontainer - Received container state "ABORTING" instead of "RUNNING"\n'
    )
    assert [found.says[:30] for found in symptoms.every(log)] == [
        "nvml error: driver not loaded",
        "Failed to run mount hooks",
        "Driver Not Loaded",
        'Received container state "ABOR',
        "Failed to setup container",
    ]


@pytest.mark.parametrize("symptom", symptoms.SYMPTOMS, ids=lambda s: s.says[:40])
def test_every_entry_can_be_reached_and_is_whole(symptom: symptoms.Symptom) -> None:
    text = symptom.says.replace("…", " x ")
    assert symptoms.find(text) == symptom, f"{symptoms.find(text)} hides it"
    assert symptom.cause and symptom.remedy


def test_blanks_and_line_ends_are_alike() -> None:
    assert "daemon-reload" in symptoms.hint("failed to initialize\nNVML:  unknown error")


def test_case_19_the_kernels_two_lines_are_read() -> None:
    log = "x\nNVRM: API mismatch: the client has the version 580.126.09, but\nNVRM: this kernel module has the version 580.95.05.  Please\n"
    assert symptoms.api_mismatch(log) == ("580.126.09", "580.95.05")
    again = log + log.replace("126.09", "126.18")
    assert symptoms.api_mismatch(again) == ("580.126.18", "580.95.05")  # the last one counts
    assert symptoms.api_mismatch("nvidia-uvm: Loaded the UVM driver\n") is None


@pytest.mark.parametrize("code", sorted(set(symptoms.CUDA_ERRORS) - {0}))
def test_case_26_cuda_codes_have_cause_and_remedy(code: int) -> None:
    assert str(code) in symptoms.cuda_error(code)
    assert "to do:" in symptoms.cuda_error(code)


def test_case_26_codes_that_are_told_apart() -> None:
    assert "module differ" in symptoms.cuda_error(803)
    assert "fabric manager" in symptoms.cuda_error(802)
    assert "nvidia-uvm" in symptoms.cuda_error(999)
    assert "Jetson" in symptoms.cuda_error(801)
    assert "different versions" in symptoms.nvml_error(18)
    assert "daemon-reload" in symptoms.nvml_error(999)
    assert symptoms.cuda_error(0) == "CUDA error 0, success"


def test_unknown_codes_say_where_to_look() -> None:
    assert "CUresult" in symptoms.cuda_error(42)
    assert "nvmlReturn_t" in symptoms.nvml_error(42)


@pytest.mark.parametrize(
    ("rc", "text", "says"),
    [
        (0, "GPU 0: Made Up (UUID: GPU-1)", ""),
        (0, "Failed to initialize NVML: Unknown Error", "daemon-reload"),  # an exit code of 0 beside a failure's text
        (6, "", "NVML error 6, not found"),
        (6, "No devices were found", "nodes missing"),
        (9, "words of another version", "not loaded on the host"),
        (1, "segfault", "nvidia-smi ended with 1: segfault"),
        (1, "", "no words"),
    ],
)
def test_nvidia_smi_is_judged_by_text_and_code(rc: int, text: str, says: str) -> None:
    assert says in symptoms.smi(rc, text)
    assert bool(symptoms.smi(rc, text)) is bool(says)


def test_xids_of_a_kernel_log() -> None:
    log = "NVRM: Xid (PCI:0000:0f:00): 79, pid=12, GPU has fallen off the bus.\nx\nNVRM: Xid (0000:10:00): 999, made up\n"
    found = symptoms.xids(log)
    assert [(bus, number) for bus, number, _ in found] == [("0000:0f:00", 79), ("0000:10:00", 999)]
    assert "fallen off" in found[0][2]
    assert "NVIDIA's list" in found[1][2]
    assert symptoms.xids("nothing here") == ()


def test_the_page_has_every_entry_of_the_table() -> None:
    # Whether docs/symptoms.md is this text, `tools/docs.py --check` says (a part of ./fly lint).
    page = (Path(__file__).resolve().parents[3] / "docs" / "symptoms.md").read_text(encoding="utf-8")
    for symptom in symptoms.SYMPTOMS:
        assert f"| `{symptom.says}` | {symptom.code} | {symptom.cause} | {symptom.remedy} |" in page
    for code in sorted(set(symptoms.CUDA_ERRORS) - {0}):
        assert f"| {code} | {symptoms.CUDA_ERRORS[code][0]} |" in page
