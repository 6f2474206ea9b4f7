// SPDX-License-Identifier: Apache-2.0
// The double of a card: a process that runs the window kernel's arithmetic for whoever connects, so that host cores are the caller's alone.
// Constants, hash and random numbers are those of flysim.cu itself; warps and barriers are loops here (the kernel's own logic is tested by
// crates/cuda/tests). `kill` of this process is the loss of the card; /run/double/slow holds milliseconds that each launch takes longer.
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire.h"

#define __device__ __attribute__((unused)) static
#define __global__
#define __shared__ static
#define __launch_bounds__(a, b)
#define LOAD_L2(p) (*(p))
#define LOAD_NOW(p) (*(p))
static struct { unsigned x; } threadIdx, blockIdx, blockDim, gridDim;
static void __syncthreads() {}
static void __threadfence() {}
static unsigned __ballot_sync(unsigned, bool set) { return set; }
template <class T> static T __shfl_sync(unsigned, T value, unsigned) { return value; }
template <class T> static T __shfl_up_sync(unsigned, T value, unsigned) { return value; }
template <class T> static T __shfl_down_sync(unsigned, T, unsigned) { return 0; }  // one lane at a time: there is nothing to add
template <class T, class U> static T atomicAdd(T* p, U value) { T old = *p; *p += (T)value; return old; }
template <class T> static T atomicOr(T* p, T value) { T old = *p; *p |= value; return old; }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static int __ffs(int x) { return __builtin_ffs(x); }
static long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
#include "flysim.cu"

// One neuron through one window; what integrate() does in a lane.
static bool window(const Params& p, u32 neuron, u32 due, u32 slot, u64 tick, u32 since, u32 ticks, u32& mask) {
    bool exists = neuron < p.neurons;
    double v = p.v[neuron], g = p.g[neuron];
    u32 refractory = p.refractory[neuron], threshold = p.threshold[neuron];
    u32 kicks = threshold != 0 ? poisson_mask(p.seed, tick, ticks, neuron, threshold) : 0;
    if (p.has_kicks) kicks |= p.kicks[neuron], p.kicks[neuron] = 0;
    for (u32 k = 0; k < ticks; ++k) {
        int* cell = &p.ring[slot_after(slot, k) * p.stride + neuron];
        int input = due >> k & 1 ? *cell : 0;
        if (due >> k & 1) *cell = 0;
        u32 spiked = 0;
        refractory = refractory > 0 ? refractory - 1 : 0;
        if (refractory == 0) {
            v = V_REST + (v - V_REST) * PROP_A + g * PROP_C;
            g = g * PROP_B;
            if (g < G_FLUSH && g > -G_FLUSH) g = 0.0;
            if (v > V_THRESHOLD) {
                spiked = 1, v = V_RESET, g = 0.0, refractory = p.period[neuron], mask |= 1u << k;
            } else {
                if (input != 0) g = g + WEIGHT * (double)input;
                if (kicks >> k & 1) v = v + KICK;
            }
        }
        if (p.hashes != 0 && exists) p.hashes[since + k] += neuron_hash(neuron, v, g, refractory, spiked);
    }
    p.v[neuron] = v, p.g[neuron] = g, p.refractory[neuron] = (unsigned char)refractory;
    return !(g == 0.0 && refractory == 0 && V_REST + (v - V_REST) * PROP_A + g * PROP_C == v);
}

static void group_window(const Params& p, u32 group, u32 slot, u32 since, u32 ticks) {
    u32 due = 0;
    for (u32 k = 0; k < ticks; ++k) {
        unsigned char* flag = &p.touched[group * FLAG_STRIDE + slot_after(slot, k)];
        due |= (u32)(*flag != 0) << k, *flag = 0;
    }
    if (due == 0 && p.awake[group] == 0 && p.driven[group] == 0) {
        for (u32 n = group * 32; p.hashes != 0 && n < group * 32 + 32; ++n) hash_sleeping(p, 0, n, since, ticks);
        return;
    }
    u32 masks[32] = {};
    bool moving = false;
    for (u32 lane = 0; lane < 32; ++lane) moving |= window(p, group * 32 + lane, due, slot, p.tick + since, since, ticks, masks[lane]);
    p.awake[group] = moving;
    for (u32 lane = 0; lane < 32; ++lane) {
        for (u32 left = masks[lane]; left != 0; left &= left - 1) {
            u32 at = (*p.spike_count)++;
            if (at < p.spike_capacity) p.spikes[at] = (u64)(since + (u32)__ffs((int)left) - 1) << 32 | (group * 32 + lane);
        }
        if (masks[lane]) scatter_row(p, slot, group * 32 + lane, masks[lane], 0, 1);
    }
}

static void run(char* memory, const Command& command) {
    if (command.kernel == KICK_KERNEL) {
        blockDim.x = gridDim.x = 1;
        fly_kick((u32*)(memory + command.kicks), (unsigned char*)(memory + command.awake), (const u64*)(memory + command.list), command.count);
        return;
    }
    Params p;
    static_assert(sizeof p == sizeof command.params, "the kernel's parameters");
    memcpy(&p, command.params, sizeof p);
    char** pointers = (char**)&p;
    for (int i = 0; i < 17; ++i)
        if (pointers[i]) pointers[i] = memory + (size_t)pointers[i];
    u32 slot = (u32)(p.tick % SLOTS);
    for (u32 since = 0; since < p.ticks; since += WINDOW) {
        u32 ticks = p.ticks - since < WINDOW ? p.ticks - since : WINDOW;
        for (u32 group = 0; group < p.groups; ++group) group_window(p, group, slot, since, ticks);
        slot = slot_after(slot, ticks);
    }
}

static void serve(int fd) {
    char hello, room[CMSG_SPACE(sizeof(int))], done = 0;
    iovec part = {&hello, 1};
    msghdr message = {};
    message.msg_iov = &part, message.msg_iovlen = 1, message.msg_control = room, message.msg_controllen = sizeof room;
    if (recvmsg(fd, &message, 0) != 1 || !CMSG_FIRSTHDR(&message)) return;
    int shared;
    memcpy(&shared, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof shared);
    char* memory = (char*)mmap(nullptr, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, shared, 0);
    if (memory == MAP_FAILED) return;
    for (Command command; recv(fd, &command, sizeof command, MSG_WAITALL) == (ssize_t)sizeof command;) {
        run(memory, command);
        int slow_ms = 0;
        if (FILE* f = fopen("/run/double/slow", "r")) {
            if (fscanf(f, "%d", &slow_ms) == 1) usleep((unsigned)slow_ms * 1000);
            fclose(f);
        }
        if (send(fd, &done, 1, MSG_NOSIGNAL) != 1) return;
    }
}

int main() {
    signal(SIGCHLD, SIG_IGN);
    // A card does not wait for the host's cpus; where the scheduler groups sessions, a nice value alone says nothing.
    if (nice(-20) == -1) perror("nice");
    if (FILE* f = fopen("/proc/self/autogroup", "w")) fputs("-20", f), fclose(f);
    mkdir("/run/double", 0755);
    unlink("/run/double/card.sock");
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un at = {AF_UNIX, "/run/double/card.sock"};
    if (listener < 0 || bind(listener, (sockaddr*)&at, sizeof at) != 0 || chmod(at.sun_path, 0666) != 0 || listen(listener, 8) != 0) return perror("card"), 1;
    for (;;) {
        int fd = accept(listener, nullptr, nullptr);
        if (fd < 0) continue;
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(listener);
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
}
