// SPDX-License-Identifier: Apache-2.0
// What libcuda's double and the card's double say to each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

// What the driver has registered; a unit with ProtectKernelTunables has a /proc of its own, without our /proc/devices.
enum { NVIDIA_MAJOR = 195, UVM_MAJOR = 511 };
enum { WINDOWS_KERNEL = 1, KICK_KERNEL = 2 };
static const size_t MEMORY = 512u << 20;  // bytes of the card; a page that nobody wrote costs nothing

struct Command {
    uint32_t kernel;
    char params[176];  // of fly_windows
    uint64_t kicks, awake, list;
    uint32_t count;
};
