//! What the build compiles the kernels for, and what it makes each machine code from.

use crate::arch::{self, Arch, Request, Targets};

use std::collections::BTreeSet;
use std::path::Path;

fn plain(number: u32) -> Arch {
    Arch {
        number,
        suffix: None,
    }
}

fn special(number: u32) -> Arch {
    Arch {
        number,
        suffix: Some('a'),
    }
}

fn targets(code: &[Arch], ptx: &[Arch]) -> Targets {
    Targets {
        code: code.to_vec(),
        ptx: ptx.to_vec(),
    }
}

#[test]
fn a_build_has_kernels_or_says_why_not() {
    let kernels = warpool::driver::build_info::kernels();
    assert_eq!(kernels.toolkit.is_some(), cfg!(warpool_cuda));
    assert_eq!(kernels.toolkit.is_none(), kernels.left_out.is_some());
    assert_eq!(kernels.toolkit.is_none(), kernels.architectures.is_empty());
}

#[test]
fn compute_capabilities_are_read_in_every_spelling() {
    let one = |text: &str| arch::parse(text);
    let list = |code: &[Arch], ptx: &[Arch]| Ok(Request::List(targets(code, ptx)));
    for text in ["90", "9.0", "sm_90", " 90 "] {
        assert_eq!(one(text), list(&[plain(90)], &[]), "{text}");
    }
    assert_eq!(one("90a"), list(&[special(90)], &[]));
    assert_eq!(one("9.0a"), one("90a"));
    assert_eq!(one("10.0"), list(&[plain(100)], &[]));
    assert_eq!(one("90, 75,7.5"), list(&[plain(75), plain(90)], &[]));
    assert_eq!(
        one("90,compute_80,compute_7.5"),
        list(&[plain(90)], &[plain(75), plain(80)])
    );
    assert_eq!(one("compute_75"), list(&[], &[plain(75)]));
    assert_eq!(one("native"), Ok(Request::Native));
    assert_eq!(one(""), Ok(Request::Default));
}

#[test]
fn a_garbled_compute_capability_is_an_error_that_says_what_is_accepted() {
    for text in [
        "banana",
        "9",
        "90b",
        "90,",
        ",",
        "9.",
        ".9",
        "9.00",
        "-90",
        "90;75",
        "99999999999",
        "429496729.9",
        "9.0.0",
        "a",
        "compute_",
        "compute_sm_90",
    ] {
        let refused = arch::parse(text).unwrap_err();
        assert!(
            refused.starts_with(&format!("CUDA_COMPUTE_CAP={text} ")),
            "{refused}"
        );
        assert!(refused.contains("90, 9.0, 90a"), "{refused}");
    }
}

#[test]
fn the_default_is_every_listed_architecture_that_the_compiler_knows_and_ptx_low_and_high() {
    let chosen = |knows: &[u32]| arch::choose(&Request::Default, knows);
    assert_eq!(
        chosen(&[75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]).unwrap(),
        targets(
            &[75, 80, 89, 90, 100, 103, 110, 120].map(plain),
            &[80, 120].map(plain)
        )
    );
    assert_eq!(
        chosen(&[75, 80, 86, 87, 89, 90]).unwrap(),
        targets(&[75, 80, 89, 90].map(plain), &[80, 90].map(plain))
    );
    assert_eq!(
        chosen(&[75, 80]).unwrap(),
        targets(&[75, 80].map(plain), &[plain(80)])
    );
    assert!(chosen(&[35]).unwrap_err().contains("only 35"));
}

#[test]
fn an_architecture_the_compiler_does_not_know_is_an_error_that_lists_those_it_does() {
    let asked = arch::parse("50,90").unwrap();
    let refused = arch::choose(&asked, &[75, 90]).unwrap_err();
    assert!(
        refused.contains("asks for 50") && refused.contains("75, 90"),
        "{refused}"
    );
    let asked = arch::parse("90,compute_50").unwrap();
    let refused = arch::choose(&asked, &[75, 90]).unwrap_err();
    assert!(refused.contains("asks for 50"), "{refused}");
}

fn listed(text: &str) -> Targets {
    arch::choose(&arch::parse(text).unwrap(), &[75, 80, 90]).unwrap()
}

#[test]
fn the_highest_architecture_goes_in_as_portable_code_too() {
    assert_eq!(
        arch::flags(&listed("80,90")),
        [
            "-gencode=arch=compute_80,code=sm_80",
            "-gencode=arch=compute_90,code=sm_90",
            "-gencode=arch=compute_90,code=compute_90"
        ]
    );
    assert_eq!(arch::names(&listed("80,90")), "sm_80,sm_90,compute_90");
}

#[test]
fn portable_code_that_is_listed_goes_in_and_no_other() {
    assert_eq!(arch::names(&listed("90,compute_75")), "sm_90,compute_75");
    assert_eq!(
        arch::names(&listed("compute_80,compute_75")),
        "compute_75,compute_80"
    );
    assert_eq!(
        arch::flags(&listed("compute_75")),
        ["-gencode=arch=compute_75,code=compute_75"]
    );
}

/// What each machine code is made from: `90>100`.
fn made(text: &str) -> Vec<String> {
    let asked = arch::parse(text).unwrap();
    let knows = [75, 80, 89, 90, 100, 103, 110, 120];
    let flags = arch::flags(&arch::choose(&asked, &knows).unwrap());
    let pairs = flags.iter().filter_map(|flag| {
        let from = flag.strip_prefix("-gencode=arch=compute_")?;
        from.split_once(",code=sm_")
    });
    pairs.map(|(from, to)| format!("{from}>{to}")).collect()
}

#[test]
fn the_code_of_later_architectures_is_made_from_the_first_ones_that_knows_all_the_kernels_use() {
    let default = [
        "75>75", "80>80", "89>89", "90>90", "90>100", "90>103", "90>110", "120>120",
    ];
    assert_eq!(made(""), default, "PTX of 120 goes in: it is made anyway");
    assert_eq!(made("100,103,compute_90"), ["100>100", "100>103"]);
    assert_eq!(made("80,89,compute_75"), ["80>80", "89>89"]);
    assert_eq!(made("90,100"), ["90>90", "100>100"]);
    assert_eq!(
        made("90,103a,110,compute_80"),
        ["90>90", "103a>103a", "90>110"]
    );
    assert_eq!(
        made("90a,100,103,compute_80"),
        ["90a>90a", "100>100", "100>103"]
    );
}

#[test]
fn no_kernel_asks_for_more_than_the_shared_architecture() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut numbers = BTreeSet::new();
    for path in ["device", "convert", "."].map(|below| folder.join(below)) {
        for file in std::fs::read_dir(path).unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap_or_default();
            numbers.extend(asked_architectures(&text));
        }
    }
    assert!(numbers.contains(&890), "{numbers:?}");
    let beyond = numbers.range(arch::SHARED * 10 + 1..).next();
    assert_eq!(
        beyond,
        None,
        "its code is made from PTX of {}",
        arch::SHARED
    );
}

/// The numbers that a source compares the architecture with.
fn asked_architectures(text: &str) -> Vec<u32> {
    let mut asked = Vec::new();
    for name in ["__CUDA_ARCH__", "WP_ARCH"] {
        for (at, _) in text.match_indices(name) {
            let rest = text[at + name.len()..].trim_start_matches([' ', '<', '>', '=', '!']);
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            asked.extend(digits.and_then(|digits| digits.parse::<u32>().ok()));
        }
    }
    asked
}

#[test]
fn code_for_one_architecture_alone_is_never_called_portable() {
    assert_eq!(arch::names(&listed("80,90a")), "sm_80,sm_90a,compute_80");
    assert_eq!(
        arch::flags(&listed("90a")),
        ["-gencode=arch=compute_90a,code=sm_90a"]
    );
}
