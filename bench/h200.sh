#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proofs on a bare GPU machine (an NVIDIA card, root, cgroup v2; no systemd, no LXC, no network): one name, one proof.
#   bench/h200.sh provision      a guest with the card: made, unchanged the second time, cuInit inside, retired without a trace
#   bench/h200.sh main_job       `./fly bench main_job`: plain deploy, deploy --gpu through the five checks, rollback-cpu; the record
#   bench/h200.sh parity         `./fly bench parity`: the same bits on 1, 2, 3, 7 threads and the card; the record
#   bench/h200.sh sabotage [S]   `./fly bench sabotage` within S seconds (420): real deploys that are wrong while they look right. It goes on where an
#                                earlier one ended when its records/sabotage/ was carried there as .lab/sabotage/
#   bench/h200.sh lifecycle      `./fly bench lifecycle`: provision, CPU, GPU, a lost card, the GPU again, a watch of WATCH_MINUTES (5), rollback
#   bench/h200.sh switches       `./fly bench switches`: thirty times from the CPU to the GPU and back
# All but the first need prebuilt releases in .lab/: cpu.tar.gz, cuda.tar.gz (./fly build, ./fly build --gpu); parity circuit668.fly as well, and
# lifecycle fault.tar.gz (FLY_CARGO_FEATURES=cuda,fault ./fly build). DOUBLE=1 rehearses on a machine without a card (tests/beds/doublecard.py).
# What must have been carried there: .lab/ (tests/beds/gpu-lab/build.sh .lab) and .whl/ (pip download -r requirements/run.txt -d .whl).
# Results go to $OUT (reports/ when that is not set). CARD=0 leaves the card out, and FLYLAB=0 the lab: for a rehearsal on a machine that has LXC.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-$PWD/reports}
mkdir -p "$out"
proof=${1:?usage: bench/h200.sh provision}

if [ "${FLYLAB:-1}" = 1 ] && [ -z "${FLYLAB_INSIDE:-}" ]; then
  OUT=$out LAB=$PWD/.lab exec tests/beds/gpu-lab/enter.sh "$PWD/bench/h200.sh" "$@"
fi

if [ "${DOUBLE:-0}" = 1 ] && [ -z "${DOUBLECARD_INSIDE:-}" ]; then
  OUT=$out exec python3 -m tests.beds.doublecard "$PWD/bench/h200.sh" "$@"
fi

offline=()
[ -d .whl ] && [ "${FLYLAB:-1}" = 1 ] && offline=(--offline .whl)
card=()
[ "${CARD:-1}" = 1 ] && card=(--gpu)
guest=dev1
rootfs=${ROOTFS:-$PWD/.lab/guest.tar.xz}
log=$out/$proof.txt

say() { printf '\n### %s  (%s s)\n' "$*" "$SECONDS"; }
fly() { printf '$ ./fly %s\n' "$*"; ./fly "${offline[@]}" "$@"; }
inside() { lxc-attach -n "$guest" --clear-env -v PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin -- "$@"; }
want() { if [ "$2" != "$3" ]; then printf 'FAILED: %s: expected %q, found %q\n' "$1" "$2" "$3"; exit 1; fi; printf 'ok: %s: %s\n' "$1" "$3"; }

CUDA='
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, context, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
name = ctypes.create_string_buffer(100)
steps = [("cuInit", cuda.cuInit(0)), ("cuDeviceGetCount", cuda.cuDeviceGetCount(ctypes.byref(count))), ("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0)),
         ("cuDevicePrimaryCtxRetain", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)), ("cuDeviceGetName", cuda.cuDeviceGetName(name, 100, device))]
cuda.cuDriverGetVersion(ctypes.byref(version))
print(steps, count.value, name.value.decode(), version.value)
raise SystemExit(any(code for _, code in steps))
'

# The guest that later proofs use as well; leaves `guest` running.
provision_guest() {
  say "provision"
  fly provision "$guest" --rootfs "$rootfs" --network none --cpus "${CPUS:-0-7}" --memory "${MEMORY:-16G}" "${card[@]}"
  want "systemd in the guest" running "$(inside systemctl is-system-running)"
}

prove_provision() {
  provision_guest
  say "what the guest has"
  cat "/var/lib/lxc/$guest/config"
  inside sh -c 'ls -l /dev/nvidia* /dev/nvidia-caps 2>&1; grep Cpus_allowed_list /proc/self/status; cat /proc/1/cgroup; ldconfig -p | grep -E "libcuda|nvidia-ml"; nvidia-smi -L' || true
  if [ "${CARD:-1}" = 1 ]; then
    say "a CUDA context in the guest"
    inside python3 -c "$CUDA"
  fi
  say "again: nothing changes"
  pid=$(lxc-info -n "$guest" -p -H)
  fly provision "$guest" --rootfs "$rootfs" --network none --cpus "${CPUS:-0-7}" --memory "${MEMORY:-16G}" "${card[@]}" | tee "$out/again.txt"
  want "changed by the second run" 0 "$(grep -o 'changed=[0-9]*' "$out/again.txt" | tail -1 | cut -d= -f2)"
  want "pid of the guest's init" "$pid" "$(lxc-info -n "$guest" -p -H)"
  say "other limits without a restart"
  fly provision "$guest" --cpus 0-1 --memory 2G
  want "cpus in the guest" "0-1" "$(inside sh -c 'grep Cpus_allowed_list /proc/self/status | cut -f2')"
  want "pid of the guest's init" "$pid" "$(lxc-info -n "$guest" -p -H)"
  say "retire"
  inside sh -c 'mkdir -p /var/lib/fly && echo state > /var/lib/fly/checkpoint'
  fly retire "$guest"
  want "what is left of it" "" "$(ls -d /var/lib/lxc/$guest inventory/hosts.d/$guest.yml 2>/dev/null || true)"
  archive=$(ls -t "${XDG_STATE_HOME:-$HOME/.local/state}"/flyops/archive/$guest-*.tar.gz | head -1)
  want "what is in the archive" "state" "$(tar -xzOf "$archive" var/lib/fly/checkpoint)"
}

prove_main_job() {
  ROOTFS=$rootfs CPU_RELEASE=$PWD/.lab/cpu.tar.gz CUDA_RELEASE=$PWD/.lab/cuda.tar.gz fly bench main_job --out "$out/records"
}

prove_parity() {
  FLY_RELEASE=$PWD/.lab/cuda.tar.gz FLY_BRAIN_CIRCUIT668=$PWD/.lab/circuit668.fly fly bench parity --out "$out/records"
}

prove_sabotage() {
  if [ -d .lab/sabotage ]; then export SABOTAGE_KEPT=$PWD/.lab/sabotage; fi
  SABOTAGE_BUDGET_S=${1:-420} ROOTFS=$rootfs CPU_RELEASE=$PWD/.lab/cpu.tar.gz CUDA_RELEASE=$PWD/.lab/cuda.tar.gz fly bench sabotage --out "$out/records"
}

prove_lifecycle() {
  if [ -e .lab/fault.tar.gz ]; then export FAULT_RELEASE=$PWD/.lab/fault.tar.gz; fi
  ROOTFS=$rootfs CPU_RELEASE=$PWD/.lab/cpu.tar.gz CUDA_RELEASE=$PWD/.lab/cuda.tar.gz fly bench lifecycle --out "$out/records"
}

prove_switches() {
  ROOTFS=$rootfs CPU_RELEASE=$PWD/.lab/cpu.tar.gz CUDA_RELEASE=$PWD/.lab/cuda.tar.gz fly bench switches --out "$out/records"
}

# One file travels back more easily than many.
pack() { if [ -d "$out/records" ]; then tar -C "$out" -czf "$out/records.tar.gz" records; fi; }
trap pack EXIT

{ declare -F "prove_$proof" >/dev/null || { echo "no proof named $proof"; exit 2; }; "prove_$proof" "${@:2}"; say "all of $proof held"; } 2>&1 | tee "$log"
