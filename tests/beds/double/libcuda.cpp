// SPDX-License-Identifier: Apache-2.0
// A double of libcuda.so.1 for beds without a card: the driver calls that flysim and check 2 make, forwarded to `card` (card.cpp).
//
// What is real: the nodes must be character devices of the right numbers, and this process must be allowed to open them
// (cgroup rule, mode, owner); PTX is read for version, target, entries and completeness; waits sleep. What is not: there is no GPU.
// Errors are the codes that the real driver gives. Knobs for sabotage are files in /run/double: spin, absent, max-isa.
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

#define API extern "C" __attribute__((visibility("default"))) int
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_PTX = 218, UNSUPPORTED_PTX = 222, NOT_FOUND = 500, LAUNCH_FAILED = 719, UNKNOWN = 999 };

// As the kernel would: no driver is behind these numbers here, so an open that is allowed ends with ENXIO.
static bool usable(const char* path, unsigned number) {
    struct stat seen;
    if (stat(path, &seen) != 0 || !S_ISCHR(seen.st_mode) || major(seen.st_rdev) != number) return false;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) close(fd);
    return fd >= 0 || errno == ENXIO || errno == ENODEV;
}

static bool knob(const char* name) {
    char path[100];
    snprintf(path, sizeof path, "/run/double/%s", name);
    return access(path, F_OK) == 0;
}

static int link_fd = -1, pending, initialised;
static char* memory;
static size_t used = 4096, live;

static int wait_for_card() {
    for (char done; pending > 0; pending--) {
        ssize_t got;
        int flags = knob("spin") ? MSG_DONTWAIT : 0;  // a driver that was not asked for blocking waits polls
        do got = recv(link_fd, &done, 1, flags);
        while (got < 0 && (errno == EINTR || errno == EAGAIN));
        if (got != 1 || done != 0) return pending = 0, LAUNCH_FAILED;
    }
    return OK;
}

static int tell(const Command& command) {
    if (send(link_fd, &command, sizeof command, MSG_NOSIGNAL) != (ssize_t)sizeof command) return LAUNCH_FAILED;
    pending++;
    return OK;
}

static int connect_card() {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), shared = memfd_create("card", MFD_CLOEXEC);
    sockaddr_un at = {AF_UNIX, "/run/double/card.sock"};
    if (fd < 0 || shared < 0 || ftruncate(shared, MEMORY) != 0 || connect(fd, (sockaddr*)&at, sizeof at) != 0) return NO_DEVICE;
    memory = (char*)mmap(nullptr, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shared, 0);
    char hello = 'h', room[CMSG_SPACE(sizeof shared)] = {};
    iovec part = {&hello, 1};
    msghdr message = {};
    message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = room, message.msg_controllen = sizeof room;
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof shared);
    memcpy(CMSG_DATA(head), &shared, sizeof shared);
    bool sent = sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
    close(shared);
    link_fd = fd;
    return sent && memory != MAP_FAILED ? OK : NO_DEVICE;
}

API cuInit(unsigned) {
    if (knob("absent") || !usable("/dev/nvidiactl", NVIDIA_MAJOR) || !usable("/dev/nvidia0", NVIDIA_MAJOR)) return NO_DEVICE;
    if (!usable("/dev/nvidia-uvm", UVM_MAJOR)) return UNKNOWN;  // NVML works without it, CUDA does not
    initialised = 1;
    return OK;
}
API cuDriverGetVersion(int* version) { return *version = 12040, OK; }
API cuDeviceGetCount(int* count) { return *count = 1, initialised ? OK : NOT_INITIALIZED; }
API cuDeviceGet(int* device, int ordinal) { return *device = 0, ordinal == 0 ? OK : BAD_DEVICE; }
API cuDeviceGetName(char* name, int length, int) { return snprintf(name, (size_t)length, "Double"), OK; }
API cuDeviceGetUuid(char* uuid, int) { return memset(uuid, 0xdb, 16), OK; }
API cuDeviceGetUuid_v2(char* uuid, int) { return memset(uuid, 0xdb, 16), OK; }
API cuDeviceGetAttribute(int* value, int which, int) { return *value = which == 75 ? 8 : which == 76 ? 0 : which == 16 ? 4 : which == 95 ? 1 : 0, OK; }
API cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return OK; }
API cuDevicePrimaryCtxRetain(void** context, int) {
    if (link_fd < 0)
        if (int failed = connect_card()) return failed;
    return *context = &link_fd, OK;
}
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuCtxSetCurrent(void*) { return OK; }
API cuCtxGetCurrent(void** context) { return *context = &link_fd, OK; }
API cuStreamCreate(void** stream, unsigned) { return *stream = &pending, OK; }
API cuStreamDestroy_v2(void*) { return OK; }
API cuStreamSynchronize(void*) { return wait_for_card(); }

// The checks that the real JIT makes first; the text itself is not compiled.
API cuModuleLoadData(void** module, const char* text) {
    int major = 0, minor = 0, arch = 0, most = 84, depth = 0;
    const char* version = strstr(text, "\n.version ");
    const char* target = strstr(text, "\n.target sm_");
    if (FILE* f = fopen("/run/double/max-isa", "r")) {
        if (fscanf(f, "%d", &most) != 1) most = 84;
        fclose(f);
    }
    if (!version || !target || sscanf(version, "\n.version %d.%d", &major, &minor) != 2 || sscanf(target, "\n.target sm_%d", &arch) != 1) return BAD_PTX;
    if (major * 10 + minor > most) return UNSUPPORTED_PTX;
    for (const char* c = text; *c; c++) depth += *c == '{' ? 1 : *c == '}' ? -1 : 0;
    if (arch > 80 || depth != 0) return BAD_PTX;
    return *module = strdup(text), OK;
}
API cuModuleUnload(void* module) { return free(module), OK; }
API cuModuleGetFunction(void** function, void* module, const char* name) {
    char entry[100];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (!strstr((const char*)module, entry)) return NOT_FOUND;
    return *function = (void*)(uintptr_t)(strcmp(name, "fly_kick") == 0 ? KICK_KERNEL : WINDOWS_KERNEL), OK;
}
API cuFuncGetAttribute(int* value, int which, void*) { return *value = which == 4 ? 32 : 0, OK; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) { return *blocks = 1, OK; }

API cuMemAlloc_v2(uint64_t* address, size_t bytes) {
    if (used + bytes + 256 > MEMORY) return NO_MEMORY;
    *address = used;
    used += (bytes + 255) / 256 * 256;
    return live++, OK;
}
API cuMemFree_v2(uint64_t) {
    if (--live == 0) used = 4096;
    return OK;
}
API cuMemHostAlloc(void** pointer, size_t bytes, unsigned) { return (*pointer = malloc(bytes ? bytes : 1)) ? OK : NO_MEMORY; }
API cuMemFreeHost(void* pointer) { return free(pointer), OK; }
API cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
    int failed = wait_for_card();
    return failed ? failed : (memset(memory + to, value, bytes), OK);
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
    int failed = wait_for_card();
    return failed ? failed : (memcpy(memory + to, from, bytes), OK);
}
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
    int failed = wait_for_card();
    return failed ? failed : (memcpy(to, memory + from, bytes), OK);
}
API cuLaunchCooperativeKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** arguments) {
    Command command = {WINDOWS_KERNEL, {}, 0, 0, 0, 0};
    memcpy(command.params, arguments[0], sizeof command.params);
    return tell(command);
}
API cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void** arguments, void**) {
    Command command = {KICK_KERNEL, {}, *(uint64_t*)arguments[0], *(uint64_t*)arguments[1], *(uint64_t*)arguments[2], *(uint32_t*)arguments[3]};
    return tell(command);
}
API cuGetErrorName(int, const char** name) { return *name = "an error of the double", OK; }
API cuGetErrorString(int, const char** name) { return *name = "an error of the double", OK; }
