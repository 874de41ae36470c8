//! The committed bindings are what bindgen makes of the header.

#[test]
fn the_committed_bindings_are_what_bindgen_makes_of_the_header() {
    if env!("WARPOOL_BUILD_BINDINGS") == "copy" {
        println!("skipped: no libclang when this was built, so bindgen did not run");
        return;
    }
    let made = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    let committed = include_str!("../../kernels/bindings.rs");
    assert!(
        made == committed,
        "kernels/warpool.h has changed; run: cp {}/bindings.rs kernels/bindings.rs",
        env!("OUT_DIR")
    );
}
