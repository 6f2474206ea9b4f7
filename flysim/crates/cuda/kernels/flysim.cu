// SPDX-License-Identifier: Apache-2.0
// The window kernel. Compiles with NVRTC alone (no header of the toolkit), always with --fmad=false.
//
// One cooperative launch runs many windows of 18 ticks. A warp owns groups of 32 neurons. In a window it reads what is
// due in its groups' part of the delay ring, integrates 18 ticks in registers, and scatters its own spikes at once:
// the ring has 36 slots, so the slots written in a window (t + 18 ...) are never those read in it (t ...), and one
// grid barrier per window is enough. All sums between neurons are integers: atomics may come in any order.
//
// Arithmetic and hash are those of crates/core (cpu/lanes.rs, hash.rs, philox.rs), operation by operation.

typedef unsigned int u32;
typedef unsigned long long u64;

#define WINDOW 18
#define SLOTS 36
#define FLAG_STRIDE 64          // bytes per group in `touched`: 36 used, one 64-byte line
#define HUB_EDGES 1024          // rows longer than this are scattered by the whole block
#define HUB_LIST 128
#define FULL 0xffffffffu

#define V_REST (-52.0)
#define V_RESET (-52.0)
#define V_THRESHOLD (-45.0)
#define WEIGHT 0.275
#define KICK 68.75
#define PROP_A 0.9950124791926823
#define PROP_B 0.9801986733067553
#define PROP_C 0.004937935295309022
#define G_FLUSH 8.673617379884035e-19

// Written by other multiprocessors in the window before: never from this one's L1.
#ifndef LOAD_L2
#define LOAD_L2(p) __ldcg(p)
#endif

// Polled until it changes.
#ifndef LOAD_NOW
#define LOAD_NOW(p) (*(volatile u32*)(p))
#endif

struct Params {
    double* v;                  // mV
    double* g;                  // mV
    unsigned char* refractory;  // ticks left
    const unsigned char* period;      // refractory ticks after a spike: 0 for driven neurons
    const u32* threshold;       // Poisson: random word below this is a kick
    u32* kicks;                 // external kicks of the next window, bit k: at tick + k
    int* ring;                  // [SLOTS][stride], sums of contacts
    unsigned char* touched;     // [groups][FLAG_STRIDE], slot may hold input
    unsigned char* awake;       // [groups], must be stepped
    const unsigned char* driven;      // [groups], holds a driven neuron
    const u32* offsets;         // row starts
    const u32* targets;
    const short* counts;        // signed contacts
    u32* spike_count;           // entries in `spikes`, may exceed the capacity
    u64* spikes;                // tick since launch << 32 | neuron
    u64* hashes;                // one per tick of this launch, or null
    u32* barrier;
    u64 tick;                   // first tick of this launch
    u64 seed;
    u32 neurons;
    u32 stride;                 // neurons rounded up to whole groups
    u32 groups;
    u32 ticks;                  // of this launch
    u32 spike_capacity;
    u32 has_kicks;
};

struct Row { u32 neuron; u32 mask; };

__device__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ u64 neuron_hash(u32 index, double v, double g, u32 refractory, u32 spiked) {
    u64 flags = (u64)refractory | (u64)spiked << 8 | (u64)index << 32;
    u64 h = mix(flags ^ 0x9e3779b97f4a7c15ull);
    h = mix(h ^ (u64)__double_as_longlong(v));
    return mix(h ^ (u64)__double_as_longlong(g));
}

__device__ void philox(u32 c[4], u32 k0, u32 k1) {
    for (int round = 0; round < 10; ++round) {
        u64 p0 = (u64)c[0] * 0xD2511F53u;
        u64 p1 = (u64)c[2] * 0xCD9E8D57u;
        u32 c1 = c[1], c3 = c[3];
        c[0] = (u32)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (u32)p1;
        c[2] = (u32)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

// Bit k: the Poisson drive kicks this neuron at tick + k.
__device__ u32 poisson_mask(u64 seed, u64 tick, u32 ticks, u32 neuron, u32 threshold) {
    u32 mask = 0;
    for (u64 quad = tick >> 2; quad <= (tick + ticks - 1) >> 2; ++quad) {
        u32 c[4] = {(u32)quad, (u32)(quad >> 32), neuron, 0};
        philox(c, (u32)seed, (u32)(seed >> 32));
        for (u32 j = 0; j < 4; ++j) {
            u64 at = quad * 4 + j;
            if (c[j] < threshold && at >= tick && at < tick + ticks) {
                mask |= 1u << (u32)(at - tick);
            }
        }
    }
    return mask;
}

__device__ u32 slot_after(u32 slot, u32 k) {
    u32 s = slot + k;
    return s >= SLOTS ? s - SLOTS : s;
}

// Adds part `part` of `parts` of one row, once per spike of the neuron in this window.
__device__ void scatter_row(const Params& p, u32 slot, u32 neuron, u32 mask, u32 part, u32 parts) {
    u32 end = p.offsets[neuron + 1];
    for (u32 e = p.offsets[neuron] + part; e < end; e += parts) {
        u32 target = p.targets[e];
        int contacts = p.counts[e];
        for (u32 left = mask; left != 0; left &= left - 1) {
            // A spike of tick t + k arrives at t + k + WINDOW.
            u32 due = slot_after(slot, (u32)__ffs((int)left) - 1 + WINDOW);
            atomicAdd(&p.ring[due * p.stride + target], contacts);
            // Racing writers all write 1.
            p.touched[(target >> 5) * FLAG_STRIDE + due] = 1;
        }
    }
}

// Appends the spikes of a warp to the list, with one atomic for all of them.
__device__ void emit(const Params& p, u32 lane, u32 neuron, u32 mask, u32 since) {
    u32 mine = (u32)__popc(mask);
    u32 before = mine;
    for (int step = 1; step < 32; step <<= 1) {
        u32 other = __shfl_up_sync(FULL, before, step);
        before += lane >= (u32)step ? other : 0;
    }
    u32 total = __shfl_sync(FULL, before, 31);
    u32 base = lane == 31 ? atomicAdd(p.spike_count, total) : 0;
    u32 at = __shfl_sync(FULL, base, 31) + before - mine;
    for (u32 left = mask; left != 0; left &= left - 1, ++at) {
        if (at < p.spike_capacity) {
            p.spikes[at] = (u64)(since + (u32)__ffs((int)left) - 1) << 32 | neuron;
        }
    }
}

__device__ void add_hash(const Params& p, u32 lane, u32 tick, u64 share) {
    for (int step = 16; step > 0; step >>= 1) {
        share += __shfl_down_sync(FULL, share, step);
    }
    if (lane == 0) {
        atomicAdd(&p.hashes[tick], share);
    }
}

// A group that nothing reached and that is at its fixed point: only its hash is due.
__device__ void hash_sleeping(const Params& p, u32 lane, u32 neuron, u32 since, u32 ticks) {
    u64 share = 0;
    if (neuron < p.neurons) {
        share = neuron_hash(neuron, p.v[neuron], p.g[neuron], p.refractory[neuron], 0);
    }
    for (u32 k = 0; k < ticks; ++k) {
        add_hash(p, lane, since + k, share);
    }
}

// One group of 32 neurons through one window. Returns this lane's spikes, bit k: at tick + k.
__device__ u32 integrate(const Params& p, u32 group, u32 lane, u32 due, u32 slot, u64 tick, u32 since, u32 ticks) {
    u32 neuron = group * 32 + lane;
    bool exists = neuron < p.neurons;
    int input[WINDOW];
#pragma unroll
    for (u32 k = 0; k < WINDOW; ++k) {
        input[k] = 0;
        if (due >> k & 1) {
            int* cell = &p.ring[slot_after(slot, k) * p.stride + neuron];
            input[k] = LOAD_L2(cell);
            if (input[k] != 0) {
                *cell = 0;
            }
        }
    }
    double v = p.v[neuron];
    double g = p.g[neuron];
    u32 refractory = p.refractory[neuron];
    u32 period = p.period[neuron];
    u32 threshold = p.threshold[neuron];
    u32 kicks = threshold != 0 ? poisson_mask(p.seed, tick, ticks, neuron, threshold) : 0;
    if (p.has_kicks) {
        kicks |= p.kicks[neuron];
        p.kicks[neuron] = 0;
    }
    u32 spikes = 0;
#pragma unroll
    for (u32 k = 0; k < WINDOW; ++k) {
        if (k < ticks) {
            u32 spiked = 0;
            refractory = refractory > 0 ? refractory - 1 : 0;
            if (refractory == 0) {
                v = V_REST + (v - V_REST) * PROP_A + g * PROP_C;
                g = g * PROP_B;
                if (g < G_FLUSH && g > -G_FLUSH) {
                    g = 0.0;
                }
                if (v > V_THRESHOLD) {
                    spiked = 1;
                    v = V_RESET;
                    g = 0.0;
                    refractory = period;
                    spikes |= 1u << k;
                } else {
                    if (input[k] != 0) {
                        g = g + WEIGHT * (double)input[k];
                    }
                    if (kicks >> k & 1) {
                        v = v + KICK;
                    }
                }
            }
            if (p.hashes != 0) {
                u64 share = exists ? neuron_hash(neuron, v, g, refractory, spiked) : 0;
                add_hash(p, lane, since + k, share);
            }
        }
    }
    p.v[neuron] = v;
    p.g[neuron] = g;
    p.refractory[neuron] = (unsigned char)refractory;
    double stepped = V_REST + (v - V_REST) * PROP_A + g * PROP_C;
    bool still = g == 0.0 && refractory == 0 && stepped == v;
    u32 moving = __ballot_sync(FULL, !still);
    if (lane == 0) {
        p.awake[group] = moving != 0;
    }
    return spikes;
}

// Bits of the ticks in this window for which something may be due in the group; empties the flags.
__device__ u32 take_due(const Params& p, u32 group, u32 lane, u32 slot, u32 ticks) {
    bool set = false;
    if (lane < ticks) {
        unsigned char* flag = &p.touched[group * FLAG_STRIDE + slot_after(slot, lane)];
        set = LOAD_L2(flag) != 0;
        if (set) {
            *flag = 0;
        }
    }
    return __ballot_sync(FULL, set);
}

// The barrier of cooperative groups: the top bit flips when the last block has arrived.
__device__ void grid_barrier(u32* barrier) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        u32 add = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1;
        u32 old = atomicAdd(barrier, add);
        while (((old ^ LOAD_NOW(barrier)) & 0x80000000u) == 0) {
        }
        __threadfence();
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(1024, 1) fly_windows(Params p) {
    __shared__ Row hubs[HUB_LIST];
    __shared__ u32 hub_count;
    u32 lane = threadIdx.x & 31;
    // Neighbouring groups go to different blocks: a driven population would otherwise sit in a few of them.
    u32 warp = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
    u32 warps = (blockDim.x >> 5) * gridDim.x;
    u32 slot = (u32)(p.tick % SLOTS);
    if (threadIdx.x == 0) {
        hub_count = 0;
    }
    __syncthreads();
    for (u32 since = 0; since < p.ticks; since += WINDOW) {
        u32 ticks = p.ticks - since < WINDOW ? p.ticks - since : WINDOW;
        for (u32 group = warp; group < p.groups; group += warps) {
            u32 due = take_due(p, group, lane, slot, ticks);
            u32 neuron = group * 32 + lane;
            if (due == 0 && p.awake[group] == 0 && p.driven[group] == 0) {
                if (p.hashes != 0) {
                    hash_sleeping(p, lane, neuron, since, ticks);
                }
                continue;
            }
            u32 mask = integrate(p, group, lane, due, slot, p.tick + since, since, ticks);
            u32 active = __ballot_sync(FULL, mask != 0);
            if (active != 0) {
                emit(p, lane, neuron, mask, since);
            }
            for (; active != 0; active &= active - 1) {
                u32 source = (u32)__ffs((int)active) - 1;
                u32 spikes = __shfl_sync(FULL, mask, source);
                u32 from = group * 32 + source;
                u32 place = HUB_LIST;
                if (p.offsets[from + 1] - p.offsets[from] > HUB_EDGES) {
                    place = lane == 0 ? atomicAdd(&hub_count, 1u) : 0;
                    place = __shfl_sync(FULL, place, 0);
                }
                if (place >= HUB_LIST) {
                    scatter_row(p, slot, from, spikes, lane, 32);
                } else if (lane == 0) {
                    hubs[place].neuron = from;
                    hubs[place].mask = spikes;
                }
            }
        }
        __syncthreads();
        u32 count = hub_count < HUB_LIST ? hub_count : HUB_LIST;
        for (u32 i = 0; i < count; ++i) {
            scatter_row(p, slot, hubs[i].neuron, hubs[i].mask, threadIdx.x, blockDim.x);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            hub_count = 0;
        }
        slot = slot_after(slot, ticks);
        grid_barrier(p.barrier);
    }
}

// Delivers external kicks to the next window: entries are tick offset << 32 | neuron.
extern "C" __global__ void fly_kick(u32* kicks, unsigned char* awake, const u64* list, u32 count) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        u32 neuron = (u32)list[i];
        atomicOr(&kicks[neuron], 1u << (u32)(list[i] >> 32));
        awake[neuron >> 5] = 1;
    }
}
