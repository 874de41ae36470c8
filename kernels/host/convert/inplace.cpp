/*
 * inplace.cpp: conversion inside one buffer on the host device: strip by strip through a copy of the
 * strip's source, from the start when narrowing, from the end when widening.
 */
#include "device/formats.cuh"

namespace wp {
namespace {

constexpr u64 STRIP = 1024;

/* Bytes of an element; 0 if the number is no format. */
u64 size_of(u32 type) {
    switch (type) {
        case WP_F64: return 8;
        case WP_F32: return 4;
        case WP_F16:
        case WP_BF16: return 2;
        case WP_E4M3:
        case WP_E5M2: return 1;
        default: return 0;
    }
}

}  // namespace
}  // namespace wp

extern "C" int wp_host_inplace(const wp_inplace *args) {
    using namespace wp;
    const u64 src_size = size_of(args->src_type), dst_size = size_of(args->dst_type);
    if (args->addr % 16 != 0 || src_size == 0 || dst_size == 0) return WP_INVALID;
    alignas(16) u8 copy[8 * STRIP];
    const u64 strips = (args->count + STRIP - 1) / STRIP;
    for (u64 s = 0; s < strips; s++) {
        const u64 begin = (dst_size > src_size ? strips - 1 - s : s) * STRIP;
        const u64 count = begin + STRIP < args->count ? STRIP : args->count - begin;
        memcpy(copy, (const void *)(args->addr + begin * src_size), count * src_size);
        const wp_tile tile = {(wp_addr)copy, args->addr + begin * dst_size, begin, (u32)count, 0};
        wp_convert one = {};
        one.tiles = (wp_addr)&tile;
        one.rows = 1;
        one.seed = args->seed;
        one.src_type = args->src_type;
        one.dst_type = args->dst_type;
        one.rounding = args->rounding;
        one.overflow = args->overflow;
        const int status = wp_host_convert(&one);
        if (status != WP_OK) return status;
    }
    return WP_OK;
}
