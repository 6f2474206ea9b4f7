// SPDX-License-Identifier: Apache-2.0
// Runs kernels/flysim.cu on the CPU, so that its logic is tested where there is no card: a block is an OS thread, a
// CUDA thread is a fiber in it, and warp and block operations are rendezvous of fibers. Atomics are real, blocks
// really run at once. Speed does not matter here; the program's own CPU backend is another one.
#include <sched.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

struct Index {
    unsigned x;
};

struct Warp {
    uint64_t in[32], out[2][32];
    unsigned arrived = 0, generation = 0;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(1 << 16);
    Index thread;
    Warp* warp;
    bool done = false;
};

struct Block {
    ucontext_t scheduler;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    unsigned arrived = 0, generation = 0;
    Index block, grid, size;
    Fiber* current = nullptr;
};

static thread_local Block* block_now;

static void yield() {
    swapcontext(&block_now->current->context, &block_now->scheduler);
}

static const uint64_t* rendezvous(uint64_t value) {
    Fiber* me = block_now->current;
    Warp& w = *me->warp;
    unsigned generation = w.generation;
    w.in[me->thread.x & 31] = value;
    if (++w.arrived == 32) {
        memcpy(w.out[generation & 1], w.in, sizeof w.in);
        w.arrived = 0;
        w.generation++;
    } else {
        while (w.generation == generation) yield();
    }
    return w.out[generation & 1];
}

#define __device__ static
#define __global__
#define __shared__ static thread_local
#define __launch_bounds__(a, b)
#define threadIdx (block_now->current->thread)
#define blockIdx (block_now->block)
#define gridDim (block_now->grid)
#define blockDim (block_now->size)
#define LOAD_L2(p) (*(p))
#define LOAD_NOW(p) (yield(), sched_yield(), __atomic_load_n(p, __ATOMIC_SEQ_CST))

static void __syncthreads() {
    Block& b = *block_now;
    unsigned generation = b.generation;
    if (++b.arrived == b.size.x) {
        b.arrived = 0;
        b.generation++;
    } else {
        while (b.generation == generation) yield();
    }
}
static void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static unsigned __ballot_sync(unsigned, bool set) {
    const uint64_t* all = rendezvous(set);
    unsigned mask = 0;
    for (int i = 0; i < 32; ++i) mask |= (unsigned)all[i] << i;
    return mask;
}
template <class T> static T __shfl_sync(unsigned, T value, unsigned from) { return (T)rendezvous(value)[from & 31]; }
template <class T> static T __shfl_up_sync(unsigned, T value, unsigned by) {
    unsigned lane = threadIdx.x & 31;
    return (T)rendezvous(value)[lane >= by ? lane - by : lane];
}
template <class T> static T __shfl_down_sync(unsigned, T value, unsigned by) {
    unsigned lane = threadIdx.x & 31;
    return (T)rendezvous(value)[lane + by < 32 ? lane + by : lane];
}
template <class T, class U> static T atomicAdd(T* p, U value) { return __atomic_fetch_add(p, (T)value, __ATOMIC_SEQ_CST); }
template <class T> static T atomicOr(T* p, T value) { return __atomic_fetch_or(p, value, __ATOMIC_SEQ_CST); }
static int __ffs(int x) { return __builtin_ffs(x); }
static int __popc(unsigned x) { return __builtin_popcount(x); }
static long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, 8);
    return bits;
}

#include "../kernels/flysim.cu"

struct Launch {
    Params params;
    u64* list;
    u32 count;
};
static thread_local const Launch* launch_now;

static void run_fiber() {
    const Launch& l = *launch_now;
    if (l.list) fly_kick(l.params.kicks, l.params.awake, l.list, l.count);
    else fly_windows(l.params);
    block_now->current->done = true;
    swapcontext(&block_now->current->context, &block_now->scheduler);
}

static void run_block(const Launch& launch, unsigned index, unsigned blocks, unsigned threads) {
    Block b;
    block_now = &b;
    launch_now = &launch;
    b.block = {index}, b.grid = {blocks}, b.size = {threads};
    b.warps.resize(threads / 32);
    for (unsigned i = 0; i < threads; ++i) {
        b.fibers.push_back(std::make_unique<Fiber>());
        Fiber& f = *b.fibers.back();
        f.thread = {i};
        f.warp = &b.warps[i / 32];
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data();
        f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, run_fiber, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (auto& f : b.fibers) {
            if (f->done) continue;
            any = true;
            b.current = f.get();
            swapcontext(&b.scheduler, &f->context);
        }
    }
}

static void run(const Launch& launch, unsigned blocks, unsigned threads) {
    std::vector<std::thread> all;
    for (unsigned i = 0; i < blocks; ++i) all.emplace_back(run_block, std::cref(launch), i, blocks, threads);
    for (auto& t : all) t.join();
}

template <class T> static std::vector<T> read(size_t items) {
    std::vector<T> v(items + 1);
    if (fread(v.data(), sizeof(T), items, stdin) != items) exit(3);
    return v;
}
template <class T> static void write(const std::vector<T>& v, size_t items) { fwrite(v.data(), sizeof(T), items, stdout); }

// stdin: header of u64, then the device's arrays; then launches (ticks, kicks, kicks' entries) until ticks is 0.
// stdout: per launch the spike count and hashes; at the end v, g, refractory, ring. The test holds the other side.
int main() {
    auto h = read<u64>(8);
    const u64 neurons = h[0], groups = h[1], edges = h[2], seed = h[4], blocks = h[5], threads = h[6], capacity = h[7];
    const u64 stride = groups * 32;
    auto v = read<double>(stride), g = read<double>(stride);
    auto refractory = read<unsigned char>(stride), period = read<unsigned char>(stride);
    auto threshold = read<u32>(stride);
    auto ring = read<int>(SLOTS * stride);
    auto touched = read<unsigned char>(groups * FLAG_STRIDE);
    auto driven = read<unsigned char>(groups);
    auto offsets = read<u32>(neurons + 1), targets = read<u32>(edges);
    auto counts = read<short>(edges);
    std::vector<unsigned char> awake(groups, 1);
    std::vector<u32> kicks(stride), barrier(1), spike_count(1);
    std::vector<u64> spikes(capacity), hashes(1 << 16);
    u64 tick = h[3];
    for (;;) {
        auto head = read<u64>(3);
        if (head[0] == 0) break;
        auto list = read<u64>(head[1]);
        Params p = {v.data(), g.data(), refractory.data(), period.data(), threshold.data(), kicks.data(), ring.data(),
            touched.data(), awake.data(), driven.data(), offsets.data(), targets.data(), counts.data(),
            spike_count.data(), spikes.data(), head[2] ? hashes.data() : nullptr, barrier.data(), tick, seed,
            (u32)neurons, (u32)stride, (u32)groups, (u32)head[0], (u32)capacity, head[1] != 0};
        if (head[1]) run({p, list.data(), (u32)head[1]}, 2, 32);
        spike_count[0] = 0;
        std::fill(hashes.begin(), hashes.end(), 0);
        run({p, nullptr, 0}, blocks, threads);
        u64 count = spike_count[0];
        fwrite(&count, 8, 1, stdout);
        write(spikes, count < capacity ? count : capacity);
        write(hashes, head[0]);
        tick += head[0];
    }
    write(v, stride), write(g, stride), write(refractory, stride), write(ring, SLOTS * stride);
    return 0;
}
