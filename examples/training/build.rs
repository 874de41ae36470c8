//! Compiles the kernels, for the GPU where there is a toolkit and for the host.

fn main() {
    warpool_build::kernels(&["src/kernels.cu"]);
}
