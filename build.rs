//! Compiles the kernels and binds their header.
use std::path::{Path, PathBuf};

fn sources(dir: &str, ext: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|d| d.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    files.retain(|p| p.extension().is_some_and(|e| e == ext));
    files.sort();
    files
}

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    bindgen::builder()
        .header("kernels/warpool.h")
        .allowlist_item("wp_.*|WP_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .use_core()
        .generate()
        .unwrap()
        .write_to_file(out.join("bindings.rs"))
        .unwrap();
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .cpp_link_stdlib(None)
        .opt_level(3)
        .debug(false)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-ffp-contract=off")
        .include("kernels")
        .files(sources("kernels/host", "cpp"))
        .compile("warpool_host");
    if let Ok(home) = std::env::var("CUDA_HOME") {
        let home = Path::new(&home);
        unsafe { std::env::set_var("NVCC", home.join("bin/nvcc")) };
        cc::Build::new()
            .cuda(true)
            .cudart("static")
            .cpp_link_stdlib(None)
            .opt_level(3)
            .debug(false)
            .flag("-std=c++17")
            .flag("-lineinfo")
            .flag("-gencode=arch=compute_90,code=sm_90")
            .include("kernels")
            .files(sources("kernels", "cu"))
            .compile("warpool_cuda");
        println!(
            "cargo:rustc-link-search=native={}",
            home.join("lib").display()
        );
        println!("cargo:rustc-link-lib=static=cudart_static");
        println!("cargo:rustc-link-lib=dylib=dl");
        println!("cargo:rustc-link-lib=dylib=rt");
        println!("cargo:rustc-cfg=warpool_cuda");
    }
}
