//! What a dependant's build script learns of warpool.

fn main() {
    let told = |name: &str| std::env::var(format!("DEP_WARPOOL_{name}")).expect(name);
    let header = std::path::Path::new(&told("INCLUDE")).join("warpool.h");
    assert!(header.is_file(), "{}", header.display());
    // The test leaves the kernels out.
    for name in ["TOOLKIT", "ARCHITECTURES", "NVCC"] {
        assert_eq!(told(name), "", "{name}");
    }
}
