/*
 * inplace.cuh: conversion inside one buffer, by an ordered chain of tiles.
 *
 * A tile is loaded whole into registers, flagged as loaded, and stored once every tile whose source
 * its destination overlaps has been flagged. Blocks take tiles by ticket: ascending when narrowing,
 * where a tile's destination overlaps its own and earlier sources; descending when widening, where
 * it overlaps later ones. So a tile waits only for the loads of tiles with earlier tickets, whose
 * blocks are running, and the chain ends however few blocks are resident. Sources are read before
 * anything is stored there, so no load sees a stale line.
 */
#ifndef WARPOOL_INPLACE_CUH
#define WARPOOL_INPLACE_CUH

#include "in_order.cuh"
#include "ops.cuh"
#include "vector.cuh"

namespace wp {

constexpr u64 INPLACE_TILE = WP_INPLACE_TILE;

/* The tiles whose source the destination of `tile` overlaps: [first, last]. */
struct Covered {
    u64 first, last;
};

template <class S, class D>
WP_HD Covered covered(u64 tile, u64 count) {
    constexpr u64 SB = S::SIZE / 8, DB = D::SIZE / 8;
    const u64 begin = tile * INPLACE_TILE, end = begin + INPLACE_TILE < count ? begin + INPLACE_TILE : count;
    const u64 tiles = (count + INPLACE_TILE - 1) / INPLACE_TILE;
    const u64 last = (end * DB - 1) / SB / INPLACE_TILE;
    return {begin * DB / SB / INPLACE_TILE, last < tiles ? last : tiles - 1};
}

__device__ __forceinline__ void flag_loaded(u32 *flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}

__device__ __forceinline__ void await_loaded(const u32 *flag) {
    u32 loaded = 0;
    while (true) {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(loaded) : "l"(flag) : "memory");
        if (loaded != 0) return;
        __nanosleep(32);
    }
}

/* Scratch: the ticket counter, then one flag per tile from byte 64 on; zero at the start. */
template <class S, class D>
__global__ void __launch_bounds__(CONVERT_THREADS) inplace_kernel(u64 addr, u64 count, u64 scratch, Chosen<S, D, true> op) {
    begin_in_order();
    constexpr int V = Shape<S, D>::V;
    constexpr int U = INPLACE_TILE / (V * CONVERT_THREADS);
    static_assert(U * V * CONVERT_THREADS == INPLACE_TILE, "a tile is a whole number of groups a thread");
    constexpr u64 SB = S::SIZE / 8, DB = D::SIZE / 8;
    using SV = Vector<typename S::Bits, V>;
    using DV = Vector<typename D::Bits, V>;
    __shared__ u32 ticket;
    if (threadIdx.x == 0) ticket = atomicAdd((u32 *)scratch, 1);
    __syncthreads();
    u32 *flags = (u32 *)(scratch + 64);
    const u64 tile = DB > SB ? gridDim.x - 1 - ticket : ticket;
    const u64 begin = tile * INPLACE_TILE;
    Words<typename S::Bits, V> x[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const u64 e = begin + (u64)(threadIdx.x + u * CONVERT_THREADS) * V;
        if (e + V <= count) {
            /* Lines that a widening will soon overwrite should leave the cache. */
            x[u] = load_words<typename S::Bits, V>(addr + e * SB, DB < SB ? Kept::IN_TURN : Kept::FIRST_OUT);
        } else {
            SV part;
#pragma unroll
            for (int i = 0; i < V; i++)
                part.v[i] = e + i < count ? ((const typename S::Bits *)addr)[e + i] : (typename S::Bits)0;
            x[u] = bits_as<Words<typename S::Bits, V>>(part);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) flag_loaded(flags + tile);
    const Covered on = covered<S, D>(tile, count);
    if (on.first + threadIdx.x <= on.last && on.first + threadIdx.x != tile) await_loaded(flags + on.first + threadIdx.x);
    __syncthreads();
    in_turn<true>(x, [&](int u, const Words<typename S::Bits, V> &words) {
        const u64 e = begin + (u64)(threadIdx.x + u * CONVERT_THREADS) * V;
        const SV from = bits_as<SV>(words);
        DV y;
        op.group(from.v, y.v, e);
        if (e + V <= count) {
            store_streaming(addr + e * DB, y);
        } else {
#pragma unroll
            for (int i = 0; i < V; i++)
                if (e + i < count) ((typename D::Bits *)addr)[e + i] = y.v[i];
        }
    });
}

}  // namespace wp

#endif /* WARPOOL_INPLACE_CUH */
