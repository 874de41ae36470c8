// Made by the build script from warpool.h with the fingerprint 97fe147053031525.

pub const WP_ABI_VERSION: u32 = 6;
pub const WP_INPLACE_TILE: u32 = 4096;
pub const WP_SCALER_EXPONENT: u32 = 126;
pub const WP_SMALL_MOVE: u32 = 1024;
pub const WP_MOVE_TILE: u32 = 4096;
pub const WP_TILE_GROUP: u32 = 32;
pub const WP_SLIDE_TILE: u32 = 8192;
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
pub const WP_E2M3: wp_type = 6;
pub const WP_E3M2: wp_type = 7;
pub const WP_E2M1: wp_type = 8;
pub const WP_I8: wp_type = 9;
pub const WP_I4: wp_type = 10;
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
pub struct wp_tile {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub index: wp_u64,
    pub count: wp_u32,
    pub tensor: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_tile"][::core::mem::size_of::<wp_tile>() - 32usize];
    ["Alignment of wp_tile"][::core::mem::align_of::<wp_tile>() - 8usize];
    ["Offset of field: wp_tile::src"][::core::mem::offset_of!(wp_tile, src) - 0usize];
    ["Offset of field: wp_tile::dst"][::core::mem::offset_of!(wp_tile, dst) - 8usize];
    [
        "Offset of field: wp_tile::index",
    ][::core::mem::offset_of!(wp_tile, index) - 16usize];
    [
        "Offset of field: wp_tile::count",
    ][::core::mem::offset_of!(wp_tile, count) - 24usize];
    [
        "Offset of field: wp_tile::tensor",
    ][::core::mem::offset_of!(wp_tile, tensor) - 28usize];
};
unsafe extern "C" {
    pub fn wp_convert_tile(src_type: wp_u32, dst_type: wp_u32) -> wp_u32;
}
unsafe extern "C" {
    pub fn wp_convert_group(src_type: wp_u32, dst_type: wp_u32) -> wp_u32;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_convert {
    pub src: wp_addr,
    pub dst: wp_addr,
    pub count: wp_u64,
    pub rows: wp_u64,
    pub src_pitch: wp_u64,
    pub dst_pitch: wp_u64,
    pub first: wp_u64,
    pub seed: wp_u64,
    pub tiles: wp_addr,
    pub flag: wp_addr,
    pub amax: wp_addr,
    pub block_amax: wp_addr,
    pub scale_at: wp_addr,
    pub scale: f32,
    pub bias: f32,
    pub fused: wp_u32,
    pub src_type: wp_u32,
    pub dst_type: wp_u32,
    pub rounding: wp_u32,
    pub overflow: wp_u32,
    pub pad: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_convert"][::core::mem::size_of::<wp_convert>() - 136usize];
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
        "Offset of field: wp_convert::first",
    ][::core::mem::offset_of!(wp_convert, first) - 48usize];
    [
        "Offset of field: wp_convert::seed",
    ][::core::mem::offset_of!(wp_convert, seed) - 56usize];
    [
        "Offset of field: wp_convert::tiles",
    ][::core::mem::offset_of!(wp_convert, tiles) - 64usize];
    [
        "Offset of field: wp_convert::flag",
    ][::core::mem::offset_of!(wp_convert, flag) - 72usize];
    [
        "Offset of field: wp_convert::amax",
    ][::core::mem::offset_of!(wp_convert, amax) - 80usize];
    [
        "Offset of field: wp_convert::block_amax",
    ][::core::mem::offset_of!(wp_convert, block_amax) - 88usize];
    [
        "Offset of field: wp_convert::scale_at",
    ][::core::mem::offset_of!(wp_convert, scale_at) - 96usize];
    [
        "Offset of field: wp_convert::scale",
    ][::core::mem::offset_of!(wp_convert, scale) - 104usize];
    [
        "Offset of field: wp_convert::bias",
    ][::core::mem::offset_of!(wp_convert, bias) - 108usize];
    [
        "Offset of field: wp_convert::fused",
    ][::core::mem::offset_of!(wp_convert, fused) - 112usize];
    [
        "Offset of field: wp_convert::src_type",
    ][::core::mem::offset_of!(wp_convert, src_type) - 116usize];
    [
        "Offset of field: wp_convert::dst_type",
    ][::core::mem::offset_of!(wp_convert, dst_type) - 120usize];
    [
        "Offset of field: wp_convert::rounding",
    ][::core::mem::offset_of!(wp_convert, rounding) - 124usize];
    [
        "Offset of field: wp_convert::overflow",
    ][::core::mem::offset_of!(wp_convert, overflow) - 128usize];
    [
        "Offset of field: wp_convert::pad",
    ][::core::mem::offset_of!(wp_convert, pad) - 132usize];
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
pub struct wp_inplace {
    pub addr: wp_addr,
    pub count: wp_u64,
    pub seed: wp_u64,
    pub scratch: wp_addr,
    pub src_type: wp_u32,
    pub dst_type: wp_u32,
    pub rounding: wp_u32,
    pub overflow: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_inplace"][::core::mem::size_of::<wp_inplace>() - 48usize];
    ["Alignment of wp_inplace"][::core::mem::align_of::<wp_inplace>() - 8usize];
    [
        "Offset of field: wp_inplace::addr",
    ][::core::mem::offset_of!(wp_inplace, addr) - 0usize];
    [
        "Offset of field: wp_inplace::count",
    ][::core::mem::offset_of!(wp_inplace, count) - 8usize];
    [
        "Offset of field: wp_inplace::seed",
    ][::core::mem::offset_of!(wp_inplace, seed) - 16usize];
    [
        "Offset of field: wp_inplace::scratch",
    ][::core::mem::offset_of!(wp_inplace, scratch) - 24usize];
    [
        "Offset of field: wp_inplace::src_type",
    ][::core::mem::offset_of!(wp_inplace, src_type) - 32usize];
    [
        "Offset of field: wp_inplace::dst_type",
    ][::core::mem::offset_of!(wp_inplace, dst_type) - 36usize];
    [
        "Offset of field: wp_inplace::rounding",
    ][::core::mem::offset_of!(wp_inplace, rounding) - 40usize];
    [
        "Offset of field: wp_inplace::overflow",
    ][::core::mem::offset_of!(wp_inplace, overflow) - 44usize];
};
unsafe extern "C" {
    pub fn wp_cuda_inplace(
        args: *const wp_inplace,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_inplace(args: *const wp_inplace) -> ::core::ffi::c_int;
}
pub const WP_PER_TENSOR: wp_granularity = 0;
pub const WP_PER_ROW: wp_granularity = 1;
pub const WP_PER_GROUP: wp_granularity = 2;
pub const WP_PER_SQUARE: wp_granularity = 3;
pub type wp_granularity = ::core::ffi::c_uint;
pub const WP_SCALE_F32: wp_scale_kind = 0;
pub const WP_SCALE_E8M0: wp_scale_kind = 1;
pub const WP_SCALE_E4M3: wp_scale_kind = 2;
pub type wp_scale_kind = ::core::ffi::c_uint;
pub const WP_SCALES_BY_ROW: wp_scale_layout = 0;
pub const WP_SCALES_BY_COLUMN: wp_scale_layout = 1;
pub const WP_SCALES_TILED: wp_scale_layout = 2;
pub type wp_scale_layout = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_quantize {
    pub values: wp_addr,
    pub codes: wp_addr,
    pub scales: wp_addr,
    pub zeros: wp_addr,
    pub tensor_scale: wp_addr,
    pub amax: wp_addr,
    pub rows: wp_u64,
    pub cols: wp_u64,
    pub values_pitch: wp_u64,
    pub codes_pitch: wp_u64,
    pub scales_pitch: wp_u64,
    pub seed: wp_u64,
    pub type_: wp_u32,
    pub format: wp_u32,
    pub kind: wp_u32,
    pub granularity: wp_u32,
    pub group: wp_u32,
    pub layout: wp_u32,
    pub rounding: wp_u32,
    pub pad: wp_u32,
    pub jobs: wp_addr,
    pub places: wp_addr,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_quantize"][::core::mem::size_of::<wp_quantize>() - 144usize];
    ["Alignment of wp_quantize"][::core::mem::align_of::<wp_quantize>() - 8usize];
    [
        "Offset of field: wp_quantize::values",
    ][::core::mem::offset_of!(wp_quantize, values) - 0usize];
    [
        "Offset of field: wp_quantize::codes",
    ][::core::mem::offset_of!(wp_quantize, codes) - 8usize];
    [
        "Offset of field: wp_quantize::scales",
    ][::core::mem::offset_of!(wp_quantize, scales) - 16usize];
    [
        "Offset of field: wp_quantize::zeros",
    ][::core::mem::offset_of!(wp_quantize, zeros) - 24usize];
    [
        "Offset of field: wp_quantize::tensor_scale",
    ][::core::mem::offset_of!(wp_quantize, tensor_scale) - 32usize];
    [
        "Offset of field: wp_quantize::amax",
    ][::core::mem::offset_of!(wp_quantize, amax) - 40usize];
    [
        "Offset of field: wp_quantize::rows",
    ][::core::mem::offset_of!(wp_quantize, rows) - 48usize];
    [
        "Offset of field: wp_quantize::cols",
    ][::core::mem::offset_of!(wp_quantize, cols) - 56usize];
    [
        "Offset of field: wp_quantize::values_pitch",
    ][::core::mem::offset_of!(wp_quantize, values_pitch) - 64usize];
    [
        "Offset of field: wp_quantize::codes_pitch",
    ][::core::mem::offset_of!(wp_quantize, codes_pitch) - 72usize];
    [
        "Offset of field: wp_quantize::scales_pitch",
    ][::core::mem::offset_of!(wp_quantize, scales_pitch) - 80usize];
    [
        "Offset of field: wp_quantize::seed",
    ][::core::mem::offset_of!(wp_quantize, seed) - 88usize];
    [
        "Offset of field: wp_quantize::type_",
    ][::core::mem::offset_of!(wp_quantize, type_) - 96usize];
    [
        "Offset of field: wp_quantize::format",
    ][::core::mem::offset_of!(wp_quantize, format) - 100usize];
    [
        "Offset of field: wp_quantize::kind",
    ][::core::mem::offset_of!(wp_quantize, kind) - 104usize];
    [
        "Offset of field: wp_quantize::granularity",
    ][::core::mem::offset_of!(wp_quantize, granularity) - 108usize];
    [
        "Offset of field: wp_quantize::group",
    ][::core::mem::offset_of!(wp_quantize, group) - 112usize];
    [
        "Offset of field: wp_quantize::layout",
    ][::core::mem::offset_of!(wp_quantize, layout) - 116usize];
    [
        "Offset of field: wp_quantize::rounding",
    ][::core::mem::offset_of!(wp_quantize, rounding) - 120usize];
    [
        "Offset of field: wp_quantize::pad",
    ][::core::mem::offset_of!(wp_quantize, pad) - 124usize];
    [
        "Offset of field: wp_quantize::jobs",
    ][::core::mem::offset_of!(wp_quantize, jobs) - 128usize];
    [
        "Offset of field: wp_quantize::places",
    ][::core::mem::offset_of!(wp_quantize, places) - 136usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_quantize_job {
    pub tensor: wp_quantize,
    pub how: [wp_u64; 12usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_quantize_job"][::core::mem::size_of::<wp_quantize_job>() - 240usize];
    [
        "Alignment of wp_quantize_job",
    ][::core::mem::align_of::<wp_quantize_job>() - 8usize];
    [
        "Offset of field: wp_quantize_job::tensor",
    ][::core::mem::offset_of!(wp_quantize_job, tensor) - 0usize];
    [
        "Offset of field: wp_quantize_job::how",
    ][::core::mem::offset_of!(wp_quantize_job, how) - 144usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_quantize_place {
    pub job: wp_u32,
    pub block: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_quantize_place"][::core::mem::size_of::<wp_quantize_place>() - 8usize];
    [
        "Alignment of wp_quantize_place",
    ][::core::mem::align_of::<wp_quantize_place>() - 4usize];
    [
        "Offset of field: wp_quantize_place::job",
    ][::core::mem::offset_of!(wp_quantize_place, job) - 0usize];
    [
        "Offset of field: wp_quantize_place::block",
    ][::core::mem::offset_of!(wp_quantize_place, block) - 4usize];
};
unsafe extern "C" {
    pub fn wp_quantize_plan(
        args: *const wp_quantize,
        quantize: wp_u32,
        job: *mut wp_quantize_job,
        blocks: *mut wp_u64,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_cuda_quantize(
        args: *const wp_quantize,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_quantize(args: *const wp_quantize) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_cuda_dequantize(
        args: *const wp_quantize,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_dequantize(args: *const wp_quantize) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_transpose {
    pub src: wp_addr,
    pub plain: wp_addr,
    pub transposed: wp_addr,
    pub scale: wp_addr,
    pub amax: wp_addr,
    pub rows: wp_u64,
    pub cols: wp_u64,
    pub src_pitch: wp_u64,
    pub plain_pitch: wp_u64,
    pub transposed_pitch: wp_u64,
    pub seed: wp_u64,
    pub src_type: wp_u32,
    pub dst_type: wp_u32,
    pub rounding: wp_u32,
    pub overflow: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_transpose"][::core::mem::size_of::<wp_transpose>() - 104usize];
    ["Alignment of wp_transpose"][::core::mem::align_of::<wp_transpose>() - 8usize];
    [
        "Offset of field: wp_transpose::src",
    ][::core::mem::offset_of!(wp_transpose, src) - 0usize];
    [
        "Offset of field: wp_transpose::plain",
    ][::core::mem::offset_of!(wp_transpose, plain) - 8usize];
    [
        "Offset of field: wp_transpose::transposed",
    ][::core::mem::offset_of!(wp_transpose, transposed) - 16usize];
    [
        "Offset of field: wp_transpose::scale",
    ][::core::mem::offset_of!(wp_transpose, scale) - 24usize];
    [
        "Offset of field: wp_transpose::amax",
    ][::core::mem::offset_of!(wp_transpose, amax) - 32usize];
    [
        "Offset of field: wp_transpose::rows",
    ][::core::mem::offset_of!(wp_transpose, rows) - 40usize];
    [
        "Offset of field: wp_transpose::cols",
    ][::core::mem::offset_of!(wp_transpose, cols) - 48usize];
    [
        "Offset of field: wp_transpose::src_pitch",
    ][::core::mem::offset_of!(wp_transpose, src_pitch) - 56usize];
    [
        "Offset of field: wp_transpose::plain_pitch",
    ][::core::mem::offset_of!(wp_transpose, plain_pitch) - 64usize];
    [
        "Offset of field: wp_transpose::transposed_pitch",
    ][::core::mem::offset_of!(wp_transpose, transposed_pitch) - 72usize];
    [
        "Offset of field: wp_transpose::seed",
    ][::core::mem::offset_of!(wp_transpose, seed) - 80usize];
    [
        "Offset of field: wp_transpose::src_type",
    ][::core::mem::offset_of!(wp_transpose, src_type) - 88usize];
    [
        "Offset of field: wp_transpose::dst_type",
    ][::core::mem::offset_of!(wp_transpose, dst_type) - 92usize];
    [
        "Offset of field: wp_transpose::rounding",
    ][::core::mem::offset_of!(wp_transpose, rounding) - 96usize];
    [
        "Offset of field: wp_transpose::overflow",
    ][::core::mem::offset_of!(wp_transpose, overflow) - 100usize];
};
unsafe extern "C" {
    pub fn wp_cuda_transpose(
        args: *const wp_transpose,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_transpose(args: *const wp_transpose) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_scaler {
    pub scale: f32,
    pub inverse: f32,
    pub found: wp_u32,
    pub skip: wp_u32,
    pub good_steps: wp_u32,
    pub interval: wp_u32,
    pub growth: f32,
    pub backoff: f32,
    pub updates: wp_u64,
    pub skipped: wp_u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_scaler"][::core::mem::size_of::<wp_scaler>() - 48usize];
    ["Alignment of wp_scaler"][::core::mem::align_of::<wp_scaler>() - 8usize];
    [
        "Offset of field: wp_scaler::scale",
    ][::core::mem::offset_of!(wp_scaler, scale) - 0usize];
    [
        "Offset of field: wp_scaler::inverse",
    ][::core::mem::offset_of!(wp_scaler, inverse) - 4usize];
    [
        "Offset of field: wp_scaler::found",
    ][::core::mem::offset_of!(wp_scaler, found) - 8usize];
    [
        "Offset of field: wp_scaler::skip",
    ][::core::mem::offset_of!(wp_scaler, skip) - 12usize];
    [
        "Offset of field: wp_scaler::good_steps",
    ][::core::mem::offset_of!(wp_scaler, good_steps) - 16usize];
    [
        "Offset of field: wp_scaler::interval",
    ][::core::mem::offset_of!(wp_scaler, interval) - 20usize];
    [
        "Offset of field: wp_scaler::growth",
    ][::core::mem::offset_of!(wp_scaler, growth) - 24usize];
    [
        "Offset of field: wp_scaler::backoff",
    ][::core::mem::offset_of!(wp_scaler, backoff) - 28usize];
    [
        "Offset of field: wp_scaler::updates",
    ][::core::mem::offset_of!(wp_scaler, updates) - 32usize];
    [
        "Offset of field: wp_scaler::skipped",
    ][::core::mem::offset_of!(wp_scaler, skipped) - 40usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_unscale {
    pub tiles: wp_addr,
    pub count: wp_u64,
    pub scaler: wp_addr,
    pub type_: wp_u32,
    pub pad: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_unscale"][::core::mem::size_of::<wp_unscale>() - 32usize];
    ["Alignment of wp_unscale"][::core::mem::align_of::<wp_unscale>() - 8usize];
    [
        "Offset of field: wp_unscale::tiles",
    ][::core::mem::offset_of!(wp_unscale, tiles) - 0usize];
    [
        "Offset of field: wp_unscale::count",
    ][::core::mem::offset_of!(wp_unscale, count) - 8usize];
    [
        "Offset of field: wp_unscale::scaler",
    ][::core::mem::offset_of!(wp_unscale, scaler) - 16usize];
    [
        "Offset of field: wp_unscale::type_",
    ][::core::mem::offset_of!(wp_unscale, type_) - 24usize];
    [
        "Offset of field: wp_unscale::pad",
    ][::core::mem::offset_of!(wp_unscale, pad) - 28usize];
};
unsafe extern "C" {
    pub fn wp_cuda_unscale(
        args: *const wp_unscale,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_unscale(args: *const wp_unscale) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_scaler_update {
    pub scaler: wp_addr,
    pub most: wp_addr,
    pub largest: wp_addr,
    pub top: ::core::ffi::c_int,
    pub pad: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_scaler_update"][::core::mem::size_of::<wp_scaler_update>() - 32usize];
    [
        "Alignment of wp_scaler_update",
    ][::core::mem::align_of::<wp_scaler_update>() - 8usize];
    [
        "Offset of field: wp_scaler_update::scaler",
    ][::core::mem::offset_of!(wp_scaler_update, scaler) - 0usize];
    [
        "Offset of field: wp_scaler_update::most",
    ][::core::mem::offset_of!(wp_scaler_update, most) - 8usize];
    [
        "Offset of field: wp_scaler_update::largest",
    ][::core::mem::offset_of!(wp_scaler_update, largest) - 16usize];
    [
        "Offset of field: wp_scaler_update::top",
    ][::core::mem::offset_of!(wp_scaler_update, top) - 24usize];
    [
        "Offset of field: wp_scaler_update::pad",
    ][::core::mem::offset_of!(wp_scaler_update, pad) - 28usize];
};
unsafe extern "C" {
    pub fn wp_cuda_scaler_update(
        args: *const wp_scaler_update,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_scaler_update(args: *const wp_scaler_update) -> ::core::ffi::c_int;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct wp_feedback {
    pub src: wp_addr,
    pub residual: wp_addr,
    pub dst: wp_addr,
    pub scale: wp_addr,
    pub inverse: wp_addr,
    pub count: wp_u64,
    pub first: wp_u64,
    pub seed: wp_u64,
    pub type_: wp_u32,
    pub rounding: wp_u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of wp_feedback"][::core::mem::size_of::<wp_feedback>() - 72usize];
    ["Alignment of wp_feedback"][::core::mem::align_of::<wp_feedback>() - 8usize];
    [
        "Offset of field: wp_feedback::src",
    ][::core::mem::offset_of!(wp_feedback, src) - 0usize];
    [
        "Offset of field: wp_feedback::residual",
    ][::core::mem::offset_of!(wp_feedback, residual) - 8usize];
    [
        "Offset of field: wp_feedback::dst",
    ][::core::mem::offset_of!(wp_feedback, dst) - 16usize];
    [
        "Offset of field: wp_feedback::scale",
    ][::core::mem::offset_of!(wp_feedback, scale) - 24usize];
    [
        "Offset of field: wp_feedback::inverse",
    ][::core::mem::offset_of!(wp_feedback, inverse) - 32usize];
    [
        "Offset of field: wp_feedback::count",
    ][::core::mem::offset_of!(wp_feedback, count) - 40usize];
    [
        "Offset of field: wp_feedback::first",
    ][::core::mem::offset_of!(wp_feedback, first) - 48usize];
    [
        "Offset of field: wp_feedback::seed",
    ][::core::mem::offset_of!(wp_feedback, seed) - 56usize];
    [
        "Offset of field: wp_feedback::type_",
    ][::core::mem::offset_of!(wp_feedback, type_) - 64usize];
    [
        "Offset of field: wp_feedback::rounding",
    ][::core::mem::offset_of!(wp_feedback, rounding) - 68usize];
};
unsafe extern "C" {
    pub fn wp_cuda_feedback(
        args: *const wp_feedback,
        stream: *mut ::core::ffi::c_void,
    ) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_host_feedback(args: *const wp_feedback) -> ::core::ffi::c_int;
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
    pub group_move: wp_addr,
    pub small: wp_u64,
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
        "Offset of field: wp_relocate::group_move",
    ][::core::mem::offset_of!(wp_relocate, group_move) - 16usize];
    [
        "Offset of field: wp_relocate::small",
    ][::core::mem::offset_of!(wp_relocate, small) - 24usize];
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
    pub fenced: wp_u32,
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
    [
        "Offset of field: wp_slide::fenced",
    ][::core::mem::offset_of!(wp_slide, fenced) - 44usize];
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
unsafe extern "C" {
    pub fn wp_cuda_load(kernels: *mut wp_u32) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn wp_cuda_limit(
        processors: ::core::ffi::c_int,
        threads: ::core::ffi::c_int,
        cache: ::core::ffi::c_int,
    );
}
unsafe extern "C" {
    pub fn wp_cuda_abi() -> wp_u32;
}
unsafe extern "C" {
    pub fn wp_host_abi() -> wp_u32;
}
