// Made by the build script from warpool.h with the fingerprint 40873f3b4782306a.

pub const WP_ABI_VERSION: u32 = 1;
pub const WP_SMALL_MOVE: u32 = 2048;
pub const WP_MEDIUM_MOVE: u32 = 16384;
pub const WP_MOVE_TILE: u32 = 16384;
pub const WP_SLIDE_TILE: u32 = 16384;
pub type wp_addr = ::core::ffi::c_ulonglong;
pub type wp_u64 = ::core::ffi::c_ulonglong;
pub type wp_u32 = ::core::ffi::c_uint;
pub const WP_OK: wp_status = 0;
pub const WP_INVALID: wp_status = 1;
pub type wp_status = ::core::ffi::c_uint;
pub const WP_STAMP: wp_pattern_op = 0;
pub const WP_VERIFY: wp_pattern_op = 1;
pub const WP_POISON: wp_pattern_op = 2;
pub type wp_pattern_op = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_pattern_report {
    pub verified_bytes: wp_u64,
    pub corrupt_bytes: wp_u64,
    pub first_corrupt: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_pattern_report"][::core::mem::size_of::<wp_pattern_report>() - 24usize];
    [
        "Alignment of wp_pattern_report",
    ][::core::mem::align_of::<wp_pattern_report>() - 8usize];
    [
        "Offset of field: wp_pattern_report::verified_bytes",
    ][::core::mem::offset_of!(wp_pattern_report, verified_bytes) - 0usize];
    [
        "Offset of field: wp_pattern_report::corrupt_bytes",
    ][::core::mem::offset_of!(wp_pattern_report, corrupt_bytes) - 8usize];
    [
        "Offset of field: wp_pattern_report::first_corrupt",
    ][::core::mem::offset_of!(wp_pattern_report, first_corrupt) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_pattern {
    pub addr: wp_addr,
    pub bytes: wp_u64,
    pub seed: wp_u64,
    pub edge: wp_u64,
    pub report: wp_addr,
    pub op: wp_u32,
    pub pad: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_pattern"][::core::mem::size_of::<wp_pattern>() - 48usize];
    ["Alignment of wp_pattern"][::core::mem::align_of::<wp_pattern>() - 8usize];
    [
        "Offset of field: wp_pattern::addr",
    ][::core::mem::offset_of!(wp_pattern, addr) - 0usize];
    [
        "Offset of field: wp_pattern::bytes",
    ][::core::mem::offset_of!(wp_pattern, bytes) - 8usize];
    [
        "Offset of field: wp_pattern::seed",
    ][::core::mem::offset_of!(wp_pattern, seed) - 16usize];
    [
        "Offset of field: wp_pattern::edge",
    ][::core::mem::offset_of!(wp_pattern, edge) - 24usize];
    [
        "Offset of field: wp_pattern::report",
    ][::core::mem::offset_of!(wp_pattern, report) - 32usize];
    [
        "Offset of field: wp_pattern::op",
    ][::core::mem::offset_of!(wp_pattern, op) - 40usize];
    [
        "Offset of field: wp_pattern::pad",
    ][::core::mem::offset_of!(wp_pattern, pad) - 44usize];
};
unsafe extern "C" {
    pub fn wp_cuda_pattern(
        args: *const wp_pattern,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_pattern(args: *const wp_pattern) -> ::core::ffi::c_int;
}
pub const WP_F32: wp_type = 0;
pub const WP_F16: wp_type = 1;
pub const WP_BF16: wp_type = 2;
pub const WP_E4M3: wp_type = 3;
pub const WP_E5M2: wp_type = 4;
pub const WP_F64: wp_type = 5;
pub type wp_type = ::core::ffi::c_uint;
pub const WP_NEAREST: wp_rounding = 0;
pub const WP_TOWARD_ZERO: wp_rounding = 1;
pub const WP_UP: wp_rounding = 2;
pub const WP_DOWN: wp_rounding = 3;
pub const WP_STOCHASTIC: wp_rounding = 4;
pub type wp_rounding = ::core::ffi::c_uint;
pub const WP_TO_INFINITY: wp_overflow = 0;
pub const WP_SATURATE: wp_overflow = 1;
pub type wp_overflow = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_convert {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub count: wp_u64,
    pub rows: wp_u64,
    pub src_pitch: wp_u64,
    pub dst_pitch: wp_u64,
    pub seed: wp_u64,
    pub src_type: wp_u32,
    pub dst_type: wp_u32,
    pub rounding: wp_u32,
    pub overflow: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_convert"][::core::mem::size_of::<wp_convert>() - 72usize];
    ["Alignment of wp_convert"][::core::mem::align_of::<wp_convert>() - 8usize];
    [
        "Offset of field: wp_convert::src",
    ][::core::mem::offset_of!(wp_convert, src) - 0usize];
    [
        "Offset of field: wp_convert::dst",
    ][::core::mem::offset_of!(wp_convert, dst) - 8usize];
    [
        "Offset of field: wp_convert::count",
    ][::core::mem::offset_of!(wp_convert, count) - 16usize];
    [
        "Offset of field: wp_convert::rows",
    ][::core::mem::offset_of!(wp_convert, rows) - 24usize];
    [
        "Offset of field: wp_convert::src_pitch",
    ][::core::mem::offset_of!(wp_convert, src_pitch) - 32usize];
    [
        "Offset of field: wp_convert::dst_pitch",
    ][::core::mem::offset_of!(wp_convert, dst_pitch) - 40usize];
    [
        "Offset of field: wp_convert::seed",
    ][::core::mem::offset_of!(wp_convert, seed) - 48usize];
    [
        "Offset of field: wp_convert::src_type",
    ][::core::mem::offset_of!(wp_convert, src_type) - 56usize];
    [
        "Offset of field: wp_convert::dst_type",
    ][::core::mem::offset_of!(wp_convert, dst_type) - 60usize];
    [
        "Offset of field: wp_convert::rounding",
    ][::core::mem::offset_of!(wp_convert, rounding) - 64usize];
    [
        "Offset of field: wp_convert::overflow",
    ][::core::mem::offset_of!(wp_convert, overflow) - 68usize];
};
unsafe extern "C" {
    pub fn wp_cuda_convert(
        args: *const wp_convert,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_convert(args: *const wp_convert) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_packed_move {
    pub from: wp_u64,
    pub to: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_packed_move"][::core::mem::size_of::<wp_packed_move>() - 16usize];
    ["Alignment of wp_packed_move"][::core::mem::align_of::<wp_packed_move>() - 8usize];
    [
        "Offset of field: wp_packed_move::from",
    ][::core::mem::offset_of!(wp_packed_move, from) - 0usize];
    [
        "Offset of field: wp_packed_move::to",
    ][::core::mem::offset_of!(wp_packed_move, to) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_relocate {
    pub moves: wp_addr,
    pub first_tile: wp_addr,
    pub small: wp_u64,
    pub medium: wp_u64,
    pub large: wp_u64,
    pub tiles: wp_u32,
    pub max_blocks: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_relocate"][::core::mem::size_of::<wp_relocate>() - 48usize];
    ["Alignment of wp_relocate"][::core::mem::align_of::<wp_relocate>() - 8usize];
    [
        "Offset of field: wp_relocate::moves",
    ][::core::mem::offset_of!(wp_relocate, moves) - 0usize];
    [
        "Offset of field: wp_relocate::first_tile",
    ][::core::mem::offset_of!(wp_relocate, first_tile) - 8usize];
    [
        "Offset of field: wp_relocate::small",
    ][::core::mem::offset_of!(wp_relocate, small) - 16usize];
    [
        "Offset of field: wp_relocate::medium",
    ][::core::mem::offset_of!(wp_relocate, medium) - 24usize];
    [
        "Offset of field: wp_relocate::large",
    ][::core::mem::offset_of!(wp_relocate, large) - 32usize];
    [
        "Offset of field: wp_relocate::tiles",
    ][::core::mem::offset_of!(wp_relocate, tiles) - 40usize];
    [
        "Offset of field: wp_relocate::max_blocks",
    ][::core::mem::offset_of!(wp_relocate, max_blocks) - 44usize];
};
unsafe extern "C" {
    pub fn wp_cuda_relocate(
        args: *const wp_relocate,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_relocate(args: *const wp_relocate) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_move {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub bytes: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_move"][::core::mem::size_of::<wp_move>() - 24usize];
    ["Alignment of wp_move"][::core::mem::align_of::<wp_move>() - 8usize];
    ["Offset of field: wp_move::src"][::core::mem::offset_of!(wp_move, src) - 0usize];
    ["Offset of field: wp_move::dst"][::core::mem::offset_of!(wp_move, dst) - 8usize];
    [
        "Offset of field: wp_move::bytes",
    ][::core::mem::offset_of!(wp_move, bytes) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_slide {
    pub moves: wp_addr,
    pub lo: wp_addr,
    pub hi: wp_addr,
    pub scratch: wp_addr,
    pub count: wp_u32,
    pub upward: wp_u32,
    pub max_blocks: wp_u32,
    pub pad: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_slide"][::core::mem::size_of::<wp_slide>() - 48usize];
    ["Alignment of wp_slide"][::core::mem::align_of::<wp_slide>() - 8usize];
    [
        "Offset of field: wp_slide::moves",
    ][::core::mem::offset_of!(wp_slide, moves) - 0usize];
    ["Offset of field: wp_slide::lo"][::core::mem::offset_of!(wp_slide, lo) - 8usize];
    ["Offset of field: wp_slide::hi"][::core::mem::offset_of!(wp_slide, hi) - 16usize];
    [
        "Offset of field: wp_slide::scratch",
    ][::core::mem::offset_of!(wp_slide, scratch) - 24usize];
    [
        "Offset of field: wp_slide::count",
    ][::core::mem::offset_of!(wp_slide, count) - 32usize];
    [
        "Offset of field: wp_slide::upward",
    ][::core::mem::offset_of!(wp_slide, upward) - 36usize];
    [
        "Offset of field: wp_slide::max_blocks",
    ][::core::mem::offset_of!(wp_slide, max_blocks) - 40usize];
    ["Offset of field: wp_slide::pad"][::core::mem::offset_of!(wp_slide, pad) - 44usize];
};
unsafe extern "C" {
    pub fn wp_cuda_slide(
        args: *const wp_slide,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_slide(args: *const wp_slide) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_patch {
    pub slots: wp_addr,
    pub slot_count: wp_u64,
    pub ranges: wp_addr,
    pub range_count: wp_u32,
    pub max_blocks: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_patch"][::core::mem::size_of::<wp_patch>() - 32usize];
    ["Alignment of wp_patch"][::core::mem::align_of::<wp_patch>() - 8usize];
    [
        "Offset of field: wp_patch::slots",
    ][::core::mem::offset_of!(wp_patch, slots) - 0usize];
    [
        "Offset of field: wp_patch::slot_count",
    ][::core::mem::offset_of!(wp_patch, slot_count) - 8usize];
    [
        "Offset of field: wp_patch::ranges",
    ][::core::mem::offset_of!(wp_patch, ranges) - 16usize];
    [
        "Offset of field: wp_patch::range_count",
    ][::core::mem::offset_of!(wp_patch, range_count) - 24usize];
    [
        "Offset of field: wp_patch::max_blocks",
    ][::core::mem::offset_of!(wp_patch, max_blocks) - 28usize];
};
unsafe extern "C" {
    pub fn wp_cuda_patch(
        args: *const wp_patch,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_patch(args: *const wp_patch) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_word {
    pub addr: wp_addr,
    pub value: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_word"][::core::mem::size_of::<wp_word>() - 16usize];
    ["Alignment of wp_word"][::core::mem::align_of::<wp_word>() - 8usize];
    ["Offset of field: wp_word::addr"][::core::mem::offset_of!(wp_word, addr) - 0usize];
    [
        "Offset of field: wp_word::value",
    ][::core::mem::offset_of!(wp_word, value) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_scatter {
    pub words: wp_addr,
    pub count: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_scatter"][::core::mem::size_of::<wp_scatter>() - 16usize];
    ["Alignment of wp_scatter"][::core::mem::align_of::<wp_scatter>() - 8usize];
    [
        "Offset of field: wp_scatter::words",
    ][::core::mem::offset_of!(wp_scatter, words) - 0usize];
    [
        "Offset of field: wp_scatter::count",
    ][::core::mem::offset_of!(wp_scatter, count) - 8usize];
};
unsafe extern "C" {
    pub fn wp_cuda_scatter(
        args: *const wp_scatter,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_scatter(args: *const wp_scatter) -> ::core::ffi::c_int;
}
