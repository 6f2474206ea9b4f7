# SPDX-License-Identifier: Apache-2.0
"""Every case that runs as a real command of the operator against a real guest, in the order in which they run: cheap refusals first."""

from __future__ import annotations

from tests.sabotage import acts
from tests.sabotage.acts import deploy, driver, drop_in, live_on_gpu, nothing, over, own_node, ptx, shell, without, wrapped
from tests.sabotage.box import Box
from tests.sabotage.case import HEALTHY, Case, Outcome

DOUBLE, BOTH, CARD = ("double",), ("double", "card"), ("card",)

FEATURE = (
    Case("feature-missing", "the CPU build with FLY_LIF_CUDA=1", "feature", "no cuda feature.*exit code 78.*FLY_CARGO_FEATURES=cuda", nothing, lambda box: box.deploy(box.cpu), quick=True),
    Case(
        "words-forged", "a program that prints flysim's words and runs on the CPU", "feature", "the process that answers runs the cpu backend", nothing,
        wrapped(1, 'case "$1" in run) echo "cuda feature compiled in (PTX sm_75)" >&2; echo "cuda backend attached (made up, PTX sm_90 exact)" >&2; export FLY_LIF_CUDA=0;; esac'),
    ),
    Case(
        "words-quoted", "a program that only mentions flysim's words", "feature", "no cuda feature", nothing,
        wrapped(2, 'case "$1" in run) echo "note: a build with cuda would say: cuda feature compiled in" >&2; exit 78;; esac'),
    ),
    Case("gpu-absent", "FLY_GPU names a card that is not here", "card", "cuDeviceGet gave CUDA error 101", nothing, deploy("-e", "fly_gpu=7")),
    Case("gpu-uuid-absent", "FLY_GPU names the UUID of another card", "feature", "never held the card.*no such device", nothing, deploy("-e", "fly_gpu=GPU-00000000-0000-0000-0000-000000000000")),
)  # fmt: skip

NODES = (
    Case("uvm-regular-file", "an empty regular file in place of /dev/nvidia-uvm", "card", "/dev/nvidia-uvm is a regular file, size 0", over("/dev/nvidia-uvm", ": >$it"), deploy(), quick=True),
    Case("ctl-regular-file", "a regular file in place of /dev/nvidiactl", "card", "/dev/nvidiactl is a regular file, size 2", over("/dev/nvidiactl", "echo x >$it"), deploy()),
    Case("uvm-foreign-major", "/dev/nvidia-uvm with another driver's number", "card", r"/dev/nvidia-uvm is 1:3, the loaded module's number is \d+:0", over("/dev/nvidia-uvm", "mknod -m 666 $it c 1 3"), deploy()),
    Case("card-foreign-minor", "/dev/nvidia0 with the number of another card", "card", r"/dev/nvidia\d+ is 195:99", over("/dev/nvidia0", "mknod -m 666 $it c 195 99"), deploy()),
    Case("uvm-missing", "no /dev/nvidia-uvm; /dev/nvidia-uvm-tools is there", "card", "/dev/nvidia-uvm is missing", without("nvidia-uvm"), deploy()),
    Case("card-missing", "only the control and uvm nodes", "card", "no usable card node", without("nvidia0"), deploy()),
    Case("ctl-missing", "no /dev/nvidiactl", "card", "/dev/nvidiactl is missing", without("nvidiactl"), deploy()),
    Case("user-without-access", "the card's node is 0660 root:root: root's own look succeeds, the service's fails", "card", r"CUDA context.*/dev/nvidia\d+ has mode 0660", own_node("nvidia0", "660"), deploy(), quick=True),
    Case("uvm-mode-0000", "nobody may open /dev/nvidia-uvm", "card", "CUDA context.*/dev/nvidia-uvm has mode 0000", own_node("nvidia-uvm", "000"), deploy()),
    Case("module-not-visible", "/proc/driver/nvidia is empty", "card", "not loaded, or /proc/driver/nvidia is not visible", shell("mount -t tmpfs tmpfs /proc/driver/nvidia", "umount /proc/driver/nvidia"), deploy()),
)  # fmt: skip

OTHER = "550.54.14"
LIBRARIES = (
    Case("library-other-patch", "libcuda of another patch version, under the same links", "card", r"libcuda", driver("mv libcuda.so.$V libcuda.so.${V%.*}.01 && ln -sf libcuda.so.${V%.*}.01 libcuda.so.1"), deploy(), quick=True),
    Case("soname-to-old-file", "libcuda.so.1 leads to an older version's file beside the right one", "card", OTHER, driver(f"cp -L libcuda.so.$V libcuda.so.{OTHER} && ln -sf libcuda.so.{OTHER} libcuda.so.1"), deploy()),
    Case("leftover-library", "an older driver's libcuda is left in the guest's own folder", "card", OTHER, shell(f"echo old >/usr/lib/x86_64-linux-gnu/libcuda.so.{OTHER}", f"rm -f /usr/lib/x86_64-linux-gnu/libcuda.so.{OTHER}; ldconfig"), deploy()),
    Case("bind-target-empty", "the folder that the libraries are bound to is empty", "card", "libcuda", over("/usr/local/nvidia/lib64", "mkdir $it"), deploy()),
    Case(
        "compat-first", "a compat libcuda of a CUDA image comes first in the linker cache", "card", OTHER,
        driver(f"mkdir -p ../compat && cp -L libcuda.so.$V ../compat/libcuda.so.{OTHER} && ln -sf libcuda.so.{OTHER} ../compat/libcuda.so.1 && echo /opt/sabotage/compat >/etc/ld.so.conf.d/000-sabotage.conf"), deploy(),
    ),
    Case("nvml-only", "libcuda is missing, nvidia-smi would still work", "card", "libcuda", driver("rm -f libcuda.so*"), deploy()),
    Case("card-gone-from-driver", "the driver answers and shows no card (Xid 79)", "card", "CUDA error 100", shell("touch /run/double/absent", "rm -f /run/double/absent"), deploy(), DOUBLE),
)  # fmt: skip

PTX = (
    Case("ptx-higher-arch", "PTX of a newer card under this card's name", "ptx", "sm_121 does not run on|target: ", nothing, ptx(11, acts.retarget("sm_121"))),
    Case("ptx-lower-arch", "PTX of an older card under this card's name: the driver would translate it", "ptx", "JIT", nothing, ptx(12, acts.embedded)),
    Case("ptx-newer-isa", "an ISA that this driver does not read", "ptx", r"\.version: driver \S+ reads up to .*, found 9\.9", nothing, ptx(13, acts.newer_isa)),
    Case("ptx-fma", "one fused multiply-add", "ptx", "fused multiply-add", nothing, ptx(14, acts.fused), quick=True),
    Case("ptx-loose-rounding", "operations that the assembler may fuse", "ptx", "without a rounding mode", nothing, ptx(15, acts.loose)),
    Case("ptx-cut", "the second half of the PTX is missing", "ptx", "cut off", nothing, ptx(16, acts.cut)),
    Case("ptx-entry-renamed", "the kernel has another name", "ptx", "entries: expected fly_kick, fly_windows", nothing, ptx(17, acts.renamed)),
    Case("ptx-foreign-source", "PTX of another flysim.cu", "ptx", "made from another flysim.cu", nothing, ptx(18, acts.foreign_source)),
    Case("ptx-blank", "a file with nothing but a line's end", "ptx", "no PTX for sm_", nothing, ptx(19, lambda text, arch: "\n")),
)  # fmt: skip

GATES = (
    Case("manifest-mismatch", "the tar's binary is not the one in its MANIFEST", "release", "MANIFEST|sha256", nothing, acts.broken_manifest, quick=True),
    Case("weight-changed", "another graph under the same settings", "gate", "connectome", nothing, deploy("-e", "fly_connectome=synth:2001:40000")),
    Case("checkpoint-foreign", "the newest checkpoint is of another graph", "gate", "connectome", acts.foreign_checkpoint, deploy()),
    Case("kernel-name-changed", "a build that calls its kernel by another name", "gate", "kernel", nothing, lambda box: box.deploy(box.doctored(31, {"bin/flysim": renamed_kernel(box)}))),
)  # fmt: skip

EXACT = (
    Case("constant-weight", "another weight per contact in the binary, the same version string", "bitexact", "thirds|replay", nothing, acts.patched(41, 0.275, 0.27500000001), quick=True),
    Case("constant-decay", "another decay in the binary, the same version string", "bitexact", "thirds|replay", nothing, acts.patched(42, 0.9801986733067553, 0.98019867330675)),
    Case("ptx-weight", "another weight in the PTX alone", "bitexact", "thirds|replay", nothing, ptx(43, acts.heavier), CARD),
    Case("ptx-decay", "another decay in the PTX alone", "bitexact", "thirds|replay", nothing, ptx(44, acts.slower_decay), CARD),
    Case("brain-silent", "no drive: nothing is proven by a brain at rest", "bitexact", "no spikes in third 1", nothing, deploy("-e", "fly_drive=KC:0.001")),
    Case("replay-refused", "a build whose replay does not run on the card", "bitexact", "replay: this release gave no hash", nothing, wrapped(45, 'case "$1" in replay) echo "error: no" >&2; exit 1;; esac')),
)  # fmt: skip

COST = (
    Case("gpu-slow", "the trial gets the card for moments only (a busy neighbour has it)", "cost", "GPU: realtime factor", nothing, acts.beside("cost: .* on the cuda", acts.starved)),
    Case("clock-stands-still", "the trial answers and its ticks do not grow", "cost", r"GPU: realtime factor 0\.[0-4]", nothing, acts.beside("cost: .* on the cuda", acts.halt)),
    Case("core-burnt", "a child of the service burns a core", "cost", "the GPU run takes .* host cores", nothing, wrapped(51, 'case "$1" in run) (while :; do :; done) & ;; esac')),
    Case("spinning-wait", "the driver waits by polling", "cost", "the GPU run takes .* host cores", shell("touch /run/double/spin", "rm -f /run/double/spin"), deploy(), DOUBLE),
    Case("live-restarted", "the live unit is restarted in the window", "cost", "CPU kernel: .*(ended|changed)", nothing, acts.beside("cost: .* on the CPU", acts.restart_live), moves_live=True),
    Case("brain-quiet", "a drive so weak that neither kernel has work", "cost", "mean activity .* silent brain", nothing, deploy("-e", "fly_drive=KC:2")),
    Case("brain-spinning", "a drive that keeps every neuron spiking", "cost", "spinning brain", nothing, deploy("-e", "fly_drive=KC:4000"), DOUBLE),
)  # fmt: skip


def renamed_kernel(box: Box) -> bytes:
    """The binary with another kernel name of the same length."""
    name = box.sh("/opt/fly/current/bin/flysim --print-kernel-version").encode()
    return box.cuda.binary.read_bytes().replace(name, name[:-1] + (b"9" if name[-1:] != b"9" else b"8"))


def plain_on_reduced(box: Box) -> Outcome:
    """The CPU backend on the GPU backend's thread count."""
    return box.deploy(None, "-e", "gpu_backend=cpu", "-e", "rayon_threads=1", "-e", "rayon_threads_gpu=1", gpu=False)


def again(box: Box) -> Outcome:
    """The same deploy as the one that switched the GPU on: nothing to prove, all to look at."""
    return box.deploy()


LIVE = (
    Case("healthy-deploy", "everything right: five checks, then the switch", HEALTHY, "", nothing, deploy(), quick=True),
    Case("healthy-second", "the same again", HEALTHY, "", live_on_gpu(), again),
    Case("healthy-drop-in", "somebody's drop-in that changes nothing of ours", HEALTHY, "", live_on_gpu(drop_in("flysim", "[Service]\\nEnvironment=TZ=UTC\\n")), again),
    Case("rayon-still-high", "somebody's drop-in keeps the CPU backend's threads", "proof", "runs with RAYON_NUM_THREADS=8, expected", live_on_gpu(drop_in("flysim", "[Service]\\nExecStart=\\nExecStart=/usr/bin/env RAYON_NUM_THREADS=8 /opt/fly/current/bin/flysim run\\n")), again),
    Case("cuda-overridden", "somebody's drop-in keeps FLY_LIF_CUDA=0", "proof", "expected backend cuda, found cpu.*FLY_LIF_CUDA=0", live_on_gpu(drop_in("flysim", "[Service]\\nExecStart=\\nExecStart=/usr/bin/env FLY_LIF_CUDA=0 /opt/fly/current/bin/flysim run\\n")), again),
    Case("sim-on-other-cpus", "somebody's drop-in puts the simulator on the page's cpus", "proof", "flysim.*cpus", live_on_gpu(drop_in("flysim", "[Service]\\nCPUAffinity=\\nCPUAffinity=1\\nAllowedCPUs=1\\n")), again),
    Case("page-on-sim-cpus", "somebody's drop-in puts the page on the simulator's cpus", "proof", "flypage.*cpus|cpus.*flypage|expected", live_on_gpu(drop_in("flypage", "[Service]\\nCPUAffinity=\\nCPUAffinity=0\\nAllowedCPUs=0\\n")), again),
    Case("page-broken", "the page's unit starts another program", "proof", "healthz|flypage|page", live_on_gpu(drop_in("flypage", "[Service]\\nExecStart=\\nExecStart=/bin/sleep 600\\n")), again, DOUBLE),
    Case("current-elsewhere", "the link `current` was turned while the GPU release runs", "verify", "expected one below /opt/fly/releases", live_on_gpu(acts.turned_link), Box.verify),
    Case("receipt-edited", "the receipt was edited by hand", "receipt", "receipt .* is damaged", live_on_gpu(shell("cp -p /var/lib/flyops/receipts/gpu.json /opt/sabotage/ && sed -i 's/RAYON_NUM_THREADS=[0-9]*/RAYON_NUM_THREADS=3/' /var/lib/flyops/receipts/gpu.json", "cp -p /opt/sabotage/gpu.json /var/lib/flyops/receipts/gpu.json")), Box.rollback_cpu, quick=True),
    Case("receipt-missing", "the GPU backend is on and its receipt is gone", "receipt", "receipt", live_on_gpu(shell("mv /var/lib/flyops/receipts/gpu.json /opt/sabotage/gpu.json", "mv /opt/sabotage/gpu.json /var/lib/flyops/receipts/gpu.json")), Box.rollback_cpu),
    Case("env-edited", "somebody edited backend.env", "receipt", "somebody else|someone else|neither", live_on_gpu(shell("cp -p /etc/fly/backend.env /opt/sabotage/ && echo RAYON_NUM_THREADS=4 >>/etc/fly/backend.env", "cp -p /opt/sabotage/backend.env /etc/fly/backend.env")), Box.rollback_cpu),
    Case("cpu-on-reduced-threads", "FLY_LIF_CUDA=0 on the GPU backend's thread count", "gate", "would run below real time|RAYON_THREADS=1", live_on_gpu(), plain_on_reduced),
    Case("restore-unit-masked", "nothing would bring the CPU back when the card goes", "verify", "flyops-restore", live_on_gpu(shell("cp -p /etc/systemd/system/flyops-restore.service /opt/sabotage/ && ln -sf /dev/null /etc/systemd/system/flyops-restore.service && systemctl daemon-reload", "cp -p --remove-destination /opt/sabotage/flyops-restore.service /etc/systemd/system/ && systemctl daemon-reload")), Box.verify),
    Case("binary-swapped", "the live release's binary was exchanged after its MANIFEST was checked", "verify", "MANIFEST|sha256|replaced", live_on_gpu(acts.swapped_binary), Box.verify),
    Case("healthy-verify", "verify of a right GPU backend", HEALTHY, "", live_on_gpu(), Box.verify),
    Case("healthy-rollback", "rollback-cpu", HEALTHY, "", live_on_gpu(), Box.rollback_cpu, quick=True),
)  # fmt: skip

LAST = (
    Case("healthy-group-access", "nodes 0660 of a group that the service's user is in", HEALTHY, "", acts.group_access, deploy()),
    Case("healthy-rollback-again", "rollback-cpu", HEALTHY, "", live_on_gpu(), Box.rollback_cpu),
    Case("healthy-jit", "PTX of an older card, allowed", HEALTHY, "", nothing, ptx(61, acts.embedded, "--allow-jit")),
    Case("healthy-rollback-jit", "rollback-cpu", HEALTHY, "", live_on_gpu(), Box.rollback_cpu),
    Case("healthy-extra-nodes", "a modeset node and a folder of capabilities beside the others", HEALTHY, "", acts.extra_nodes, deploy()),
    Case("healthy-end", "rollback-cpu; nothing of all this is left", HEALTHY, "", live_on_gpu(), Box.rollback_cpu),
)  # fmt: skip

CASES: tuple[Case, ...] = (*FEATURE, *NODES, *LIBRARIES, *PTX, *GATES, *EXACT, *COST, *LIVE, *LAST)
