// Made from warpool.h by the build script. Not edited by hand.

pub const WP_ABI_VERSION: u32 = 1;
pub const WP_SLIDE_SCRATCH: u32 = 64;
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
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_convert {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub count: wp_u64,
    pub src_type: wp_u32,
    pub dst_type: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_convert"][::core::mem::size_of::<wp_convert>() - 32usize];
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
        "Offset of field: wp_convert::src_type",
    ][::core::mem::offset_of!(wp_convert, src_type) - 24usize];
    [
        "Offset of field: wp_convert::dst_type",
    ][::core::mem::offset_of!(wp_convert, dst_type) - 28usize];
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
pub struct wp_relocate {
    pub moves: wp_addr,
    pub count: wp_u64,
    pub total_bytes: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_relocate"][::core::mem::size_of::<wp_relocate>() - 24usize];
    ["Alignment of wp_relocate"][::core::mem::align_of::<wp_relocate>() - 8usize];
    [
        "Offset of field: wp_relocate::moves",
    ][::core::mem::offset_of!(wp_relocate, moves) - 0usize];
    [
        "Offset of field: wp_relocate::count",
    ][::core::mem::offset_of!(wp_relocate, count) - 8usize];
    [
        "Offset of field: wp_relocate::total_bytes",
    ][::core::mem::offset_of!(wp_relocate, total_bytes) - 16usize];
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
pub struct wp_slide {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub bytes: wp_u64,
    pub scratch: wp_addr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_slide"][::core::mem::size_of::<wp_slide>() - 32usize];
    ["Alignment of wp_slide"][::core::mem::align_of::<wp_slide>() - 8usize];
    ["Offset of field: wp_slide::src"][::core::mem::offset_of!(wp_slide, src) - 0usize];
    ["Offset of field: wp_slide::dst"][::core::mem::offset_of!(wp_slide, dst) - 8usize];
    [
        "Offset of field: wp_slide::bytes",
    ][::core::mem::offset_of!(wp_slide, bytes) - 16usize];
    [
        "Offset of field: wp_slide::scratch",
    ][::core::mem::offset_of!(wp_slide, scratch) - 24usize];
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
