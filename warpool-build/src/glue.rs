//! What stands between a kernel and Rust: entry points in C++, and safe functions that call them.

use crate::signature::{Kernel, Kind, Parameter};

/// Threads of a block on the GPU.
const THREADS: u32 = 256;

fn list(parameters: &[Parameter], each: impl Fn(&Parameter) -> String) -> String {
    parameters
        .iter()
        .map(|parameter| format!(", {}", each(parameter)))
        .collect()
}

/// What the names of a kernel's entry points begin with: linked into one program, those of two packages would be one.
fn symbol(kernel: &Kernel, package: &str) -> String {
    let package = package.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("warpool_{package}_{}", kernel.name)
}

/// The entry points, to be compiled behind the kernels by nvcc and by the C++ compiler.
pub(crate) fn cpp(kernels: &[Kernel], package: &str) -> String {
    kernels
        .iter()
        .map(|kernel| cpp_of(kernel, package))
        .collect()
}

fn cpp_of(kernel: &Kernel, package: &str) -> String {
    let (name, symbol) = (&kernel.name, symbol(kernel, package));
    let declared = list(&kernel.parameters, |p| match p.kind {
        Kind::Number => format!("{} {}", p.c, p.name),
        Kind::Reads => format!("const {} *{}", p.c, p.name),
        Kind::ReadsWhole => format!("const {} *{1}, u64 wp_len_{1}", p.c, p.name),
        Kind::Writes => format!("{} *{}", p.c, p.name),
    });
    let passed = list(&kernel.parameters, |p| match p.kind {
        Kind::ReadsWhole => format!("Whole<{}>{{{1}, wp_len_{1}}}", p.c, p.name),
        _ => p.name.clone(),
    });
    let addresses = list(&kernel.parameters, |p| match p.kind {
        Kind::ReadsWhole => format!("&{0}, &wp_len_{0}", p.name),
        _ => format!("&{}", p.name),
    });
    format!(
        r#"
#ifdef __CUDACC__
static __global__ void {symbol}_each(u64 wp_count{declared}) {{
    const u64 wp_at = blockIdx.x * (u64)blockDim.x + threadIdx.x;
    if (wp_at < wp_count) ::{name}(wp_at{passed});
}}
extern "C" int {symbol}_cuda(void *wp_stream, u64 wp_count{declared}) {{
    void *wp_arguments[] = {{(void *)&wp_count{addresses}}};
    const u64 wp_blocks = (wp_count + {last}) / {THREADS};
    if (wp_blocks > 0x7fffffffu) return (int)cudaErrorInvalidValue;
    return (int)cudaLaunchKernel((const void *){symbol}_each, dim3((unsigned)wp_blocks),
                                 dim3({THREADS}), wp_arguments, 0, (cudaStream_t)wp_stream);
}}
#else
extern "C" void {symbol}_host(u64 wp_count{declared}) {{
    for (u64 wp_at = 0; wp_at < wp_count; wp_at++) ::{name}(wp_at{passed});
}}
#endif
"#,
        last = THREADS - 1
    )
    // A pointer to const is passed by the address of the pointer, which is not const.
    .replace(", &", ", (void *)&")
}

/// The safe functions.
pub(crate) fn rust(kernels: &[Kernel], package: &str, cuda: bool) -> String {
    let each = |kernel| rust_of(kernel, package, cuda);
    kernels.iter().map(each).collect()
}

fn rust_of(kernel: &Kernel, package: &str, cuda: bool) -> String {
    let (name, file, symbol) = (&kernel.name, &kernel.file, symbol(kernel, package));
    let buffers = || kernel.parameters.iter().filter(|p| p.kind != Kind::Number);
    let arguments = list(&kernel.parameters, |p| match p.kind {
        Kind::Number => format!("{}: {}", p.name, p.rust),
        Kind::Reads | Kind::ReadsWhole => {
            format!("{}: impl Into<::warpool::View<'a, {}>>", p.name, p.rust)
        }
        Kind::Writes => format!("{}: impl Into<::warpool::ViewMut<'a, {}>>", p.name, p.rust),
    });
    let foreign = list(&kernel.parameters, |p| match p.kind {
        Kind::Number => format!("{}: {}", p.name, p.rust),
        Kind::ReadsWhole => format!("{0}: u64, wp_len_{0}: u64", p.name),
        _ => format!("{}: u64", p.name),
    });
    let values = list(&kernel.parameters, |p| match p.kind {
        Kind::Number => p.name.clone(),
        Kind::ReadsWhole => format!("wp_at_{0}, wp_len_{0}", p.name),
        _ => format!("wp_at_{}", p.name),
    });
    let each = |make: &dyn Fn(&Parameter) -> String| buffers().map(make).collect::<String>();
    let views = each(&|p| format!("    let {0} = {0}.into();\n", p.name));
    let lengths = each(&|p| match p.kind {
        Kind::ReadsWhole => String::new(),
        _ => format!("({0:?}, {0}.len()), ", p.name),
    });
    let addresses = each(&|p| match p.kind {
        Kind::ReadsWhole => format!(
            "    let (wp_at_{0}, wp_len_{0}) = ({0}.addr(), {0}.len() as u64);\n",
            p.name
        ),
        _ => format!("    let wp_at_{0} = {0}.addr();\n", p.name),
    });
    let uses = each(&|p| match p.kind {
        Kind::Reads | Kind::ReadsWhole => format!(".reads({})", p.name),
        _ => format!(".writes({})", p.name),
    });
    let (declared, launch) = match cuda {
        true => (
            format!(
                "        fn {symbol}_cuda(wp_stream: u64, wp_count: u64{foreign}) -> ::core::ffi::c_int;\n"
            ),
            format!(
                "// SAFETY: as above; the stream is live.\n            \
                 let wp_code = unsafe {{ {symbol}_cuda(stream.raw().0, wp_count{values}) }};\n            \
                 return match wp_code {{\n                0 => Ok(()),\n                \
                 wp_code => Err(::warpool::Error::Launch {{\n                    \
                 kernel: {name:?}, code: wp_code, words: \"a cudaError_t of the launch\".to_owned(),\n                \
                 }}),\n            }};"
            ),
        ),
        false => (
            String::new(),
            format!(
                "return Err(::warpool::Error::Launch {{\n                kernel: {name:?}, code: 98,\n                \
                 words: \"built where warpool had no CUDA toolkit\".to_owned(),\n            }});"
            ),
        ),
    };
    format!(
        r#"
/// Queues `{name}` of `{file}` for every element, behind what uses the buffers now and ahead of what comes
/// next, whatever the streams. All buffers but those that it reads as a whole have the same length.
///
/// # Errors
/// A buffer of another length, with nothing queued; what [`::warpool::Stream::kernel`] and the launch say.
pub fn {name}<'a>(stream: &::warpool::Stream{arguments}) -> ::warpool::Result<()> {{
    unsafe extern "C" {{
        fn {symbol}_host(wp_count: u64{foreign});
{declared}    }}
{views}    let wp_lengths = [{lengths}];
    let (wp_first, wp_len) = wp_lengths[0];
    if let Some((wp_other, wp_its)) = wp_lengths.into_iter().find(|(_, wp_its)| *wp_its != wp_len) {{
        return Err(::warpool::Error::invalid(wp_other, format!(
            "{{wp_its}} elements, and `{{wp_first}}` has {{wp_len}}: every buffer of `{name}` has as many"
        )));
    }}
    let wp_count = wp_len as u64;
    if wp_count == 0 {{
        return Ok(());
    }}
{addresses}    let wp_kernel = stream.kernel({name:?}){uses};
    wp_kernel.launch(move |stream| {{
        if stream.device().info().kind == ::warpool::device::DeviceKind::Cuda {{
            {launch}
        }}
        // SAFETY: the stream is live, and the call is given work that makes no call of the device.
        let wp_backend = unsafe {{ stream.device().raw_backend() }};
        // SAFETY: every buffer has `wp_count` elements of its type in the host's memory, or as many as are said
        // beside it, of which the kernel touches no other; the buffers' logs keep them for this work until it
        // is done. A capture keeps the work, for each run of its graph.
        let wp_work = move || unsafe {{ {symbol}_host(wp_count{values}) }};
        wp_backend.host_call_in_each_run(stream.raw(), ::std::sync::Arc::new(wp_work))
    }})?
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::find;

    fn saxpy() -> Vec<Kernel> {
        let text = "KERNEL void saxpy(u64 i, float a, const float *x, float *y) {}";
        find("k.cu", text).expect("a kernel")
    }

    #[test]
    fn a_const_pointer_is_read_and_another_written() {
        let made = rust(&saxpy(), "app", true);
        for part in [
            "pub fn saxpy<'a>(stream: &::warpool::Stream, a: f32, x: impl Into<::warpool::View<'a, f32>>, \
             y: impl Into<::warpool::ViewMut<'a, f32>>)",
            "stream.kernel(\"saxpy\").reads(x).writes(y)",
            "warpool_app_saxpy_cuda(stream.raw().0, wp_count, a, wp_at_x, wp_at_y)",
            "fn warpool_app_saxpy_host(wp_count: u64, a: f32, x: u64, y: u64);",
        ] {
            assert!(made.contains(part), "{part}\nis not in\n{made}");
        }
        assert!(!rust(&saxpy(), "app", false).contains("saxpy_cuda("));
    }

    #[test]
    fn a_whole_buffer_is_read_and_has_a_length_of_its_own() {
        let text = "KERNEL void gather(u64 i, Whole<bf16> x, const int *at, float *y) {}";
        let kernels = find("k.cu", text).expect("a kernel");
        let made = rust(&kernels, "app", true);
        for part in [
            "x: impl Into<::warpool::View<'a, ::warpool::half::bf16>>",
            "let wp_lengths = [(\"at\", at.len()), (\"y\", y.len()), ];",
            ".reads(x).reads(at).writes(y)",
            "warpool_app_gather_host(wp_count, wp_at_x, wp_len_x, wp_at_at, wp_at_y)",
            "fn warpool_app_gather_cuda(wp_stream: u64, wp_count: u64, x: u64, wp_len_x: u64, at: u64, y: u64)",
        ] {
            assert!(made.contains(part), "{part}\nis not in\n{made}");
        }
        let made = cpp(&kernels, "app");
        for part in [
            "gather(wp_at, Whole<bf16>{x, wp_len_x}, at, y)",
            "(void *)&x, (void *)&wp_len_x, (void *)&at",
        ] {
            assert!(made.contains(part), "{part}\nis not in\n{made}");
        }
    }

    #[test]
    fn a_number_is_passed_as_it_is_whatever_its_name() {
        let text = "KERNEL void f(u64 i, u64 x_len, u64 y_at, Whole<float> x, float *y) {}";
        let made = rust(&find("k.cu", text).expect("a kernel"), "app", true);
        let passed = "(wp_count, x_len, y_at, wp_at_x, wp_len_x, wp_at_y)";
        assert!(made.contains(passed), "{passed}\nis not in\n{made}");
        // Nothing else is bound to their names.
        assert!(
            !made.contains("let y_at") && !made.contains("x_len) ="),
            "{made}"
        );
    }

    #[test]
    fn a_number_may_be_called_like_its_kernel() {
        let text = "KERNEL void scale(u64 i, float scale, float *y) { y[i] *= scale; }";
        let made = cpp(&find("k.cu", text).expect("a kernel"), "app");
        let folder = std::env::temp_dir().join(format!("warpool-build-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let source = folder.join("k.cpp");
        let all = format!("#include \"warpool_kernel.h\"\n{text}\n{made}");
        std::fs::write(&source, all).expect("written");
        let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
        let compiled = std::process::Command::new(compiler)
            .args(["-std=c++17", "-fsyntax-only", "-I"])
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/include"))
            .arg(&source)
            .status();
        std::fs::remove_dir_all(&folder).expect("removed");
        assert!(compiled.expect("a compiler").success(), "{made}");
    }

    #[test]
    fn kernels_of_one_name_in_two_packages_have_entry_points_of_their_own() {
        let of = |package: &str| {
            let host = |text: &str| {
                let at = text.find("_saxpy_host(").expect("an entry point");
                text[..at].rsplit(' ').next().expect("its name").to_owned()
            };
            let made = [
                host(&cpp(&saxpy(), package)),
                host(&rust(&saxpy(), package, false)),
            ];
            assert_eq!(made[0], made[1], "Rust calls another");
            made[0].clone()
        };
        assert_eq!(of("my-app 0.1.0"), "warpool_my_app_0_1_0");
        assert_ne!(of("my-app 0.1.0"), of("my-app 0.2.0"));
    }

    #[test]
    fn both_compilers_are_given_the_same_kernel() {
        let made = cpp(&saxpy(), "app");
        for part in [
            "if (wp_at < wp_count) ::saxpy(wp_at, a, x, y);",
            "wp_at++) ::saxpy(wp_at, a, x, y);",
            "{(void *)&wp_count, (void *)&a, (void *)&x, (void *)&y}",
            "warpool_app_saxpy_host(u64 wp_count, float a, const float *x, float *y)",
        ] {
            assert!(made.contains(part), "{part}\nis not in\n{made}");
        }
    }
}
