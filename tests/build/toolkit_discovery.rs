//! The build script finds a toolkit in every layout, and reads its variables strictly.

use crate::arch::Request;
use crate::{discovery, objects, variables};

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use discovery::{Machine, Toolkit};
use variables::{Settings, Wanted};

/// A machine that is nothing but a list of files and variables.
#[derive(Default)]
struct Pretend {
    files: BTreeSet<PathBuf>,
    variables: BTreeMap<String, OsString>,
    links: BTreeMap<PathBuf, PathBuf>,
    tops: BTreeMap<PathBuf, PathBuf>,
}

impl Pretend {
    fn with(files: &[&str]) -> Self {
        Self {
            files: files.iter().map(PathBuf::from).collect(),
            ..Self::default()
        }
    }

    fn and(mut self, files: &[&str]) -> Self {
        self.files.extend(files.iter().map(PathBuf::from));
        self
    }

    fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn find(&self) -> Result<Option<Toolkit>, String> {
        discovery::find(self, Path::new("/package"), "x86_64")
    }

    /// The compiler, the runtime's folder and what led there; `None` without a toolkit.
    fn found(&self) -> Option<(String, String, String)> {
        let show = |path: &Path| path.display().to_string();
        self.find()
            .unwrap()
            .map(|t| (show(&t.nvcc), show(&t.lib), t.found_by))
    }

    fn refused(&self) -> String {
        self.find().unwrap_err()
    }
}

impl Machine for Pretend {
    fn var(&self, name: &str) -> Option<OsString> {
        let mut told = discovery::VARIABLES.iter().chain(&variables::VARIABLES);
        assert!(
            name == "PATH" || told.any(|other| *other == name),
            "{name} is read, and cargo is not told of it"
        );
        self.variables.get(name).cloned()
    }

    fn is_file(&self, path: &Path) -> bool {
        self.files.contains(path)
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let inside = self
            .files
            .iter()
            .filter_map(|file| file.strip_prefix(folder).ok());
        let first = inside.filter_map(|rest| rest.iter().next()?.to_str().map(str::to_owned));
        first.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        self.links
            .get(path)
            .cloned()
            .unwrap_or_else(|| path.to_path_buf())
    }

    fn nvcc_top(&self, nvcc: &Path) -> Option<PathBuf> {
        self.tops.get(nvcc).cloned()
    }
}

const CLASSIC: [&str; 2] = [
    "/usr/local/cuda/bin/nvcc",
    "/usr/local/cuda/lib64/libcudart_static.a",
];
const OPT: [&str; 2] = ["/opt/cuda/bin/nvcc", "/opt/cuda/lib64/libcudart_static.a"];
const WHEELS: [&str; 2] = [
    "/site/nvidia/cu13/bin/nvcc",
    "/site/nvidia/cu13/lib/libcudart_static.a",
];
const FETCHED: [&str; 2] = [
    "/package/target/cuda-toolkit/nvidia/cu13/bin/nvcc",
    "/package/target/cuda-toolkit/nvidia/cu13/lib/libcudart_static.a",
];

fn expect(nvcc: &str, lib: &str, found_by: &str) -> Option<(String, String, String)> {
    Some((nvcc.into(), lib.into(), found_by.into()))
}

#[test]
fn a_machine_without_a_toolkit_has_none() {
    assert_eq!(Pretend::default().find(), Ok(None));
    assert_eq!(
        Pretend::default()
            .set("PATH", "/usr/bin:/bin:relative::")
            .find(),
        Ok(None)
    );
}

#[test]
fn the_classic_layout_is_found_where_the_installer_puts_it() {
    let expected = expect(CLASSIC[0], "/usr/local/cuda/lib64", "/usr/local/cuda");
    assert_eq!(Pretend::with(&CLASSIC).found(), expected);
}

#[test]
fn the_wheel_layout_is_found_by_its_root_and_by_the_folder_it_was_installed_into() {
    let machine = |root| Pretend::with(&WHEELS).set("CUDA_HOME", root).found();
    let expected = expect(WHEELS[0], "/site/nvidia/cu13/lib", "CUDA_HOME");
    assert_eq!(machine("/site/nvidia/cu13"), expected);
    assert_eq!(machine("/site"), expected);
}

#[test]
fn the_newest_wheels_are_taken_by_number_not_by_spelling() {
    let older = [
        "/site/nvidia/cu9/bin/nvcc",
        "/site/nvidia/cu9/lib/libcudart_static.a",
    ];
    let machine = Pretend::with(&WHEELS)
        .and(&older)
        .and(&["/site/nvidia/cublas/lib/libcublas.so"]);
    let found = machine.set("CUDA_PATH", "/site").found();
    assert_eq!(
        found,
        expect(WHEELS[0], "/site/nvidia/cu13/lib", "CUDA_PATH")
    );
}

#[test]
fn the_layout_of_conda_is_found_by_its_prefix() {
    let lib = "/conda/targets/x86_64-linux/lib";
    let machine = Pretend::with(&["/conda/bin/nvcc", &format!("{lib}/libcudart_static.a")]);
    let found = machine.set("CONDA_PREFIX", "/conda").found();
    assert_eq!(found, expect("/conda/bin/nvcc", lib, "CONDA_PREFIX"));
}

#[test]
fn the_wheels_of_a_virtual_environment_are_found() {
    let site = "/venv/lib/python3.11/site-packages/nvidia/cu13";
    let nvcc = format!("{site}/bin/nvcc");
    let lib = format!("{site}/lib");
    let machine = Pretend::with(&[&nvcc, &format!("{lib}/libcudart_static.a")]);
    let found = machine.set("VIRTUAL_ENV", "/venv").found();
    assert_eq!(found, expect(&nvcc, &lib, "VIRTUAL_ENV"));
}

#[test]
fn an_arm_server_keeps_its_runtime_under_the_vendors_own_name() {
    let lib = "/cuda/targets/sbsa-linux/lib";
    let machine = Pretend::with(&["/cuda/bin/nvcc", &format!("{lib}/libcudart_static.a")])
        .set("CUDA_HOME", "/cuda");
    let found = discovery::find(&machine, Path::new("/package"), "aarch64")
        .unwrap()
        .unwrap();
    assert_eq!(found.lib, Path::new(lib));
    assert!(machine.refused().contains("no libcudart_static.a"));
}

#[test]
fn the_places_are_tried_in_the_documented_order() {
    // Everything is there; taking away what was found must leave the next place.
    let full = || {
        let own = |root: &str| {
            [
                format!("{root}/bin/nvcc"),
                format!("{root}/lib64/libcudart_static.a"),
            ]
        };
        let mut machine = Pretend::with(&CLASSIC).and(&OPT).and(&FETCHED);
        for root in [
            "/home",
            "/path",
            "/root_dir",
            "/nvcc",
            "/on_path",
            "/venv",
            "/conda",
        ] {
            machine.files.extend(own(root).map(PathBuf::from));
        }
        machine
            .set("CUDA_HOME", "/home")
            .set("CUDA_PATH", "/path")
            .set("CUDA_TOOLKIT_ROOT_DIR", "/root_dir")
            .set("NVCC", "/nvcc/bin/nvcc")
            .set("PATH", "/bin:/on_path/bin")
            .set("VIRTUAL_ENV", "/venv")
            .set("CONDA_PREFIX", "/conda")
    };
    let mut machine = full();
    let mut order = Vec::new();
    while let Some((nvcc, _, found_by)) = machine.found() {
        machine.variables.remove(&found_by);
        machine.files.remove(Path::new(&nvcc));
        order.push(found_by);
    }
    let documented = [
        "CUDA_HOME",
        "CUDA_PATH",
        "CUDA_TOOLKIT_ROOT_DIR",
        "NVCC",
        "target/cuda-toolkit",
        "PATH",
        "/usr/local/cuda",
        "/opt/cuda",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
    ];
    assert_eq!(order, documented);
}

#[test]
fn a_variable_set_to_nothing_is_not_set() {
    let machine = Pretend::with(&CLASSIC)
        .set("CUDA_HOME", "")
        .set("NVCC", " ");
    assert_eq!(
        machine.found(),
        expect(CLASSIC[0], "/usr/local/cuda/lib64", "/usr/local/cuda")
    );
}

#[test]
fn a_variable_that_names_no_toolkit_is_an_error_even_where_another_toolkit_exists() {
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_TOOLKIT_ROOT_DIR", "NVCC"] {
        let refused = Pretend::with(&CLASSIC).set(name, "/no/such").refused();
        assert!(
            refused.starts_with(&format!("{name}=/no/such names no CUDA toolkit")),
            "{refused}"
        );
        assert!(refused.contains("WARPOOL_CUDA=off"), "{refused}");
    }
}

#[test]
fn a_relative_path_is_an_error_even_where_the_package_s_own_folder_has_a_toolkit_there() {
    let files = ["cuda/bin/nvcc", "cuda/lib64/libcudart_static.a"];
    for (name, value) in [
        ("CUDA_HOME", "cuda"),
        ("CUDA_PATH", "cuda"),
        ("CUDA_TOOLKIT_ROOT_DIR", "cuda"),
        ("NVCC", "cuda/bin/nvcc"),
    ] {
        let refused = Pretend::with(&files).set(name, value).refused();
        let wanted = format!("{name}={value} names no CUDA toolkit: it is relative");
        assert!(refused.starts_with(&wanted), "{refused}");
    }
}

#[test]
fn a_runtime_without_a_compiler_is_passed_over_in_the_usual_places() {
    let machine = Pretend::with(&CLASSIC[1..]).and(&OPT);
    assert_eq!(
        machine.found(),
        expect(OPT[0], "/opt/cuda/lib64", "/opt/cuda")
    );
}

#[test]
fn a_compiler_without_a_runtime_is_passed_over_on_the_path_and_refused_by_name() {
    let machine = || Pretend::with(&["/usr/bin/nvcc"]).set("PATH", "/usr/bin");
    assert_eq!(machine().find(), Ok(None));
    let refused = machine().set("NVCC", "/usr/bin/nvcc").refused();
    assert!(
        refused.contains("no libcudart_static.a beside /usr/bin/nvcc"),
        "{refused}"
    );
}

#[test]
fn a_compiler_that_is_a_link_leads_to_its_toolkit() {
    let mut machine = Pretend::with(&CLASSIC)
        .and(&["/usr/bin/nvcc"])
        .set("NVCC", "/usr/bin/nvcc");
    machine
        .links
        .insert("/usr/bin/nvcc".into(), CLASSIC[0].into());
    assert_eq!(
        machine.found(),
        expect("/usr/bin/nvcc", "/usr/local/cuda/lib64", "NVCC")
    );
}

#[test]
fn a_wrapper_outside_any_toolkit_is_asked_where_its_toolkit_is() {
    let mut machine = Pretend::with(&CLASSIC)
        .and(&["/tools/nvcc"])
        .set("NVCC", "/tools/nvcc");
    machine
        .tops
        .insert("/tools/nvcc".into(), "/usr/local/cuda".into());
    assert_eq!(
        machine.found(),
        expect("/tools/nvcc", "/usr/local/cuda/lib64", "NVCC")
    );
}

#[test]
fn the_multiarch_layout_of_debian_is_found() {
    let lib = "/usr/lib/x86_64-linux-gnu";
    let machine = Pretend::with(&["/usr/bin/nvcc", &format!("{lib}/libcudart_static.a")]);
    let found = machine.set("PATH", "/usr/bin").found();
    assert_eq!(found, expect("/usr/bin/nvcc", lib, "PATH"));
}

/// What the settings are refused for.
fn unsettled(machine: &Pretend) -> String {
    Settings::read(machine).unwrap_err()
}

/// Bytes that are no UTF-8.
fn garbled() -> OsString {
    OsStr::from_bytes(b"/cuda\xFF").to_owned()
}

#[test]
fn kernels_are_wanted_off_or_required_and_nothing_else() {
    let wanted = |value: &str| Settings::read(&Pretend::default().set("WARPOOL_CUDA", value));
    let is = |value: &str| wanted(value).unwrap().wanted;
    assert_eq!(is("required"), Wanted::Required);
    assert_eq!(is(" off "), Wanted::Off);
    for auto in ["auto", "", "  "] {
        assert_eq!(is(auto), Wanted::Auto, "{auto:?}");
    }
    assert_eq!(Settings::read(&Pretend::default()), wanted("auto"));
    for value in ["on", "1", "OFF", "no", "off,auto"] {
        let refused = wanted(value).unwrap_err();
        assert!(
            refused.starts_with(&format!("WARPOOL_CUDA={value} is not one of required")),
            "{refused}"
        );
    }
}

#[test]
fn documentation_alone_is_built_without_kernels() {
    let on_docs_rs = |value: &str| {
        let machine = Pretend::default().set("WARPOOL_CUDA", "required");
        Settings::read(&machine.set("DOCS_RS", value))
            .unwrap()
            .wanted
    };
    assert_eq!(on_docs_rs("1"), Wanted::Off);
    assert_eq!(on_docs_rs(""), Wanted::Required, "set to nothing");
}

#[test]
fn a_garbled_compute_capability_is_refused_even_without_a_toolkit() {
    for wanted in ["auto", "required"] {
        let machine = Pretend::default().set("WARPOOL_CUDA", wanted);
        let refused = unsettled(&machine.set("CUDA_COMPUTE_CAP", "banana"));
        assert!(refused.starts_with("CUDA_COMPUTE_CAP=banana"), "{refused}");
    }
    let off = Pretend::default().set("WARPOOL_CUDA", "off");
    let off = Settings::read(&off.set("CUDA_COMPUTE_CAP", "banana")).unwrap();
    assert_eq!(off.request, Request::Default, "no kernels, not read");
}

#[test]
fn a_host_compiler_is_a_file_a_folder_or_a_name_on_the_path() {
    let machine = || Pretend::with(&["/usr/bin/g++-12"]).set("PATH", "/bin:/usr/bin");
    let own = |value: &str| Settings::read(&machine().set("NVCC_CCBIN", value));
    for value in ["/usr/bin/g++-12", "/usr/bin", "/usr/bin/", "g++-12"] {
        assert!(own(value).unwrap().own_host_compiler, "{value}");
    }
    for value in ["", " "] {
        assert!(!own(value).unwrap().own_host_compiler, "set to nothing");
    }
    for value in ["/usr/bin/g++-13", "g++-13", "/none/", "ccache g++-12"] {
        let refused = own(value).unwrap_err();
        assert!(
            refused.starts_with(&format!("NVCC_CCBIN={value} names no host compiler")),
            "{refused}"
        );
    }
}

#[test]
fn a_folder_of_libclang_is_handed_on_and_nothing_is_no_folder() {
    let libclang = |value: &str| {
        Settings::read(&Pretend::default().set("LIBCLANG_PATH", value))
            .unwrap()
            .libclang
    };
    assert_eq!(libclang("/no/such"), Some("/no/such".into()));
    assert_eq!(libclang(""), None);
}

#[test]
fn a_variable_that_is_no_text_is_an_error_that_names_it() {
    for name in variables::VARIABLES {
        let refused = unsettled(&Pretend::default().set(name, garbled()));
        assert!(refused.starts_with(&format!("{name}=/cuda")), "{refused}");
        assert!(refused.contains("no UTF-8"), "{refused}");
    }
    for name in ["CUDA_HOME", "CUDA_PATH", "CUDA_TOOLKIT_ROOT_DIR", "NVCC"] {
        let refused = Pretend::with(&CLASSIC).set(name, garbled()).refused();
        assert!(refused.starts_with(&format!("{name}=/cuda")), "{refused}");
    }
}

#[test]
fn a_place_that_is_no_text_is_passed_over_and_those_behind_it_are_not() {
    let path = OsStr::from_bytes(b"/odd\xFF/bin:/opt/cuda/bin");
    let machine = Pretend::with(&OPT)
        .set("PATH", path)
        .set("VIRTUAL_ENV", garbled());
    assert_eq!(machine.found(), expect(OPT[0], "/opt/cuda/lib64", "PATH"));
    let machine = Pretend::with(&["/conda/bin/nvcc", "/conda/lib/libcudart_static.a"])
        .set("VIRTUAL_ENV", garbled())
        .set("CONDA_PREFIX", "/conda");
    let expected = expect("/conda/bin/nvcc", "/conda/lib", "CONDA_PREFIX");
    assert_eq!(machine.found(), expected);
}

#[test]
fn a_toolkit_before_the_oldest_is_an_error_that_says_what_is_needed() {
    let said = |number: &str| {
        format!(
            "nvcc: NVIDIA (R) Cuda compiler driver\nVolta\nCuda compilation tools, release 1, V{number}\n"
        )
    };
    for number in ["12.1.105", "12.9.86", "13.0.88", "14.0"] {
        assert_eq!(discovery::version_of(&said(number)), Ok(number));
    }
    for number in ["12.0.140", "11.8.89", "9.2"] {
        let refused = discovery::version_of(&said(number)).unwrap_err();
        assert!(
            refused.contains(number) && refused.contains("12.1"),
            "{refused}"
        );
    }
    assert!(discovery::version_of("Volta").is_err());
}

/// A folder of kernel files, two of which include a third.
fn kernel_folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(root.join("shared")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
    write("a.cu", "#include <vector>\n#include \"shared/one.cuh\"\n");
    write("b.cu", "// nothing\n");
    write("shared/one.cuh", "#pragma once\n  #include \"two.cuh\"\n");
    write("shared/two.cuh", "int two;\n");
    root
}

#[test]
fn an_object_is_made_anew_when_what_it_was_made_from_changes_and_not_else() {
    let root = kernel_folder("objects");
    let place = |name: &str, command: &str| {
        objects::place(Path::new("/out"), &root, &root.join(name), command).unwrap()
    };
    let (a, b) = (place("a.cu", "nvcc 13"), place("b.cu", "nvcc 13"));
    assert_eq!(
        (&a, &b),
        (&place("a.cu", "nvcc 13"), &place("b.cu", "nvcc 13"))
    );
    assert_ne!(a, place("a.cu", "nvcc 14"));
    std::fs::write(root.join("shared/two.cuh"), "int two = 2;\n").unwrap();
    assert_ne!(a, place("a.cu", "nvcc 13"), "an include of an include");
    assert_eq!(b, place("b.cu", "nvcc 13"));
    let gone = objects::place(Path::new("/out"), &root, &root.join("c.cu"), "").unwrap_err();
    assert!(gone.contains("c.cu"), "{gone}");
}

#[test]
fn one_object_a_file_is_kept() {
    let folder = kernel_folder("kept");
    let names = ["a-1.o", "a-2.o", "a_fused-1.o", "b-1.o"];
    for name in names {
        std::fs::write(folder.join(name), "").unwrap();
    }
    objects::forget_others(&folder.join("a-2.o"));
    let left = names.map(|name| folder.join(name).is_file());
    assert_eq!(left, [false, true, true, true]);
}

#[test]
fn files_are_compiled_once_each_and_the_first_error_is_told() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let ran = AtomicU32::new(0);
    let run = |item: u32, jobs: usize| {
        assert!((1..=3).contains(&jobs));
        ran.fetch_add(1 << item, Ordering::Relaxed);
        Ok(())
    };
    objects::in_parallel((0..20).collect(), 3, run).unwrap();
    assert_eq!(ran.into_inner(), (1 << 20) - 1);
    let failing = |item: u32, _| {
        if item == 3 {
            Err("three".to_owned())
        } else {
            Ok(())
        }
    };
    assert_eq!(
        objects::in_parallel((0..20).collect(), 1, failing),
        Err("three".into())
    );
    assert_eq!(objects::in_parallel(Vec::<u32>::new(), 1, failing), Ok(()));
}

#[test]
fn a_compilation_that_panics_is_an_error_and_no_endless_wait() {
    let ran = std::sync::atomic::AtomicU32::new(0);
    let panics = |_: u32, _| {
        ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        panic!("of the compiler")
    };
    let outcome = objects::in_parallel((0..20).collect(), 1, panics);
    assert!(outcome.is_err_and(|why| why.contains("of the compiler")));
    assert!(ran.into_inner() < 20, "the others began all the same");
}
