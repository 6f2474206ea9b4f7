#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A driver of text in a throw-away machine: what /proc says of a loaded NVIDIA driver, over the real files; nodes are whoever's to make.
# The dynamic majors move at every boot, as they do when modules load in another order. Never to be run on a machine that matters.
set -eu
[ -e /var/lib/fakecard ] || { echo "fakecard.sh: this is no test machine (there is no /var/lib/fakecard)" >&2; exit 1; }
boot=$(($(cat /var/lib/fakecard/boot 2>/dev/null || echo 0) + 1))
echo "$boot" >/var/lib/fakecard/boot
texts=/run/fakecard
mkdir -p $texts
{
  sed '/^$/,$d' /proc/devices
  printf '195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n%d nvidia-caps\n%d nvidia-uvm\n' $((240 - boot)) $((511 - 3 * boot))
  sed -n '/^$/,$p' /proc/devices
} >$texts/devices
{ cat /proc/modules; printf 'nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n'; } >$texts/modules
mount --bind $texts/devices /proc/devices
mount --bind $texts/modules /proc/modules
mount -t tmpfs -o mode=0755 fakecard /proc/driver
card=/proc/driver/nvidia/gpus/0000:01:00.0
mkdir -p $card /proc/driver/nvidia/capabilities/mig /proc/driver/nvidia-caps
printf 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Wed May 21 10:00:00 UTC 2025\nGCC version:  \n' >/proc/driver/nvidia/version
printf 'Model: \t\t A made-up card\nGPU UUID: \t GPU-00000000-1111-2222-3333-444444444444\nBus Location: \t 0000:01:00.0\nDevice Minor: \t 0\n' >$card/information
printf 'DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\nModifyDeviceFiles: 1\n' >/proc/driver/nvidia/params
printf 'DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n' >/proc/driver/nvidia/capabilities/mig/config
printf 'DeviceFileMinor: 2\nDeviceFileMode: 292\nDeviceFileModify: 1\n' >/proc/driver/nvidia/capabilities/mig/monitor
printf 'config 1\nmonitor 2\n' >/proc/driver/nvidia-caps/mig-minors
