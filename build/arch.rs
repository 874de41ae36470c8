//! Which GPU architectures the kernels are compiled for.
//!
//! Pure, and included by `tests/build` too.

use std::fmt;

/// One architecture, as in `sm_90a`: compute capability × 10, and nvcc's suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// Major × 10 + minor.
    pub number: u32,
    /// `a`: this very architecture's own instructions; `f`: its family's.
    pub suffix: Option<char>,
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.number)?;
        self.suffix.map_or(Ok(()), |suffix| write!(f, "{suffix}"))
    }
}

/// What is compiled: machine code, and PTX, each in ascending order, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Machine code, which runs on these GPUs and on later ones of the same major number.
    pub code: Vec<Arch>,
    /// PTX, which the driver compiles for any GPU from these on that has no machine code.
    pub ptx: Vec<Arch>,
}

/// What `CUDA_COMPUTE_CAP` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Unset: every architecture of [`DEFAULT`] that the compiler knows, and PTX.
    Default,
    /// `native`: those of the GPUs in this machine.
    Native,
    /// Exactly these; without PTX in the list, that of the highest goes in too.
    List(Targets),
}

/// One binary for every GPU since Turing. Not listed: 86 runs the code of 80, and 121 that of 120; 87
/// (Orin), whose machine code is its own, and 88 run the PTX of 80.
pub const DEFAULT: [u32; 8] = [75, 80, 89, 90, 100, 103, 110, 120];

/// The highest architecture that a kernel asks about (`__CUDA_ARCH__`).
pub const SHARED: u32 = 90;

/// The lowest PTX of a default build.
pub const PORTABLE: u32 = 80;

/// Reads `CUDA_COMPUTE_CAP`: `90`, `9.0`, `sm_90`, `90a`, or `compute_90` for PTX alone; a list of
/// these separated by commas; or `native`.
///
/// # Errors
/// Anything else; the text says which part and what is accepted.
pub fn parse(value: &str) -> Result<Request, String> {
    let value = value.trim();
    if value.is_empty() {
        return Ok(Request::Default);
    }
    if value.eq_ignore_ascii_case("native") {
        return Ok(Request::Native);
    }
    let mut targets = Targets::default();
    for part in value.split(',').map(str::trim) {
        let (to, text) = match part.strip_prefix("compute_") {
            Some(text) => (&mut targets.ptx, text),
            None => (&mut targets.code, part.strip_prefix("sm_").unwrap_or(part)),
        };
        to.push(parse_one(text).ok_or_else(|| {
            format!(
                "CUDA_COMPUTE_CAP={value} is no list of compute capabilities; write 90, 9.0, 90a, \
                 compute_90 for PTX, several separated by commas, or native"
            )
        })?);
    }
    for list in [&mut targets.code, &mut targets.ptx] {
        list.sort();
        list.dedup();
    }
    Ok(Request::List(targets))
}

fn parse_one(text: &str) -> Option<Arch> {
    let suffix = text.chars().last().filter(|c| matches!(c, 'a' | 'f'));
    let digits = suffix.map_or(text, |_| &text[..text.len() - 1]);
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let number = match digits.split_once('.') {
        Some((major, minor)) if plain(major) && plain(minor) && minor.len() == 1 => {
            let tens = major.parse::<u32>().ok()?.checked_mul(10)?;
            tens.checked_add(minor.parse().ok()?)?
        }
        None if plain(digits) => digits.parse().ok()?,
        _ => return None,
    };
    (10..1000)
        .contains(&number)
        .then_some(Arch { number, suffix })
}

/// Settles a request (not `Native`: ask the machine first) against what the compiler can do.
///
/// # Errors
/// A listed architecture that the compiler does not know, or none of the defaults known.
pub fn choose(request: &Request, supported: &[u32]) -> Result<Targets, String> {
    let knows = |arch: &Arch| supported.contains(&arch.number);
    let plain = |&number: &u32| Arch {
        number,
        suffix: None,
    };
    let known = || {
        let words: Vec<String> = supported.iter().map(u32::to_string).collect();
        words.join(", ")
    };
    let mut targets = match request {
        Request::List(targets) => targets.clone(),
        Request::Default | Request::Native => Targets {
            code: DEFAULT.iter().map(plain).filter(knows).collect(),
            ptx: vec![],
        },
    };
    if let Some(stranger) = targets.code.iter().chain(&targets.ptx).find(|a| !knows(a)) {
        return Err(format!(
            "CUDA_COMPUTE_CAP asks for {stranger}, which this nvcc does not compile for; it knows {}",
            known()
        ));
    }
    if targets == Targets::default() {
        return Err(format!(
            "this nvcc knows none of the default architectures, only {}",
            known()
        ));
    }
    if targets.ptx.is_empty() {
        if *request == Request::Default {
            targets.ptx = [PORTABLE].iter().map(plain).filter(knows).collect();
        }
        // PTX with a suffix does not run on later GPUs.
        targets
            .ptx
            .extend(targets.code.iter().rfind(|arch| arch.suffix.is_none()));
        targets.ptx.dedup();
    }
    Ok(targets)
}

/// nvcc's flags: machine code for each, and PTX.
///
/// Most of a build is making PTX. That of the lowest from 90 on does for the later ones too: no kernel
/// uses what only they have. One whose own PTX goes in is made from that.
pub fn flags(targets: &Targets) -> Vec<String> {
    let shares = |arch: &Arch| arch.number >= SHARED && arch.suffix.is_none();
    let lowest = targets.code.iter().copied().find(shares);
    let made_from = |arch: Arch| match lowest {
        Some(lowest) if shares(&arch) && !targets.ptx.contains(&arch) => lowest,
        _ => arch,
    };
    let code = targets.code.iter().map(|&arch| {
        let from = made_from(arch);
        format!("-gencode=arch=compute_{from},code=sm_{arch}")
    });
    let ptx = targets.ptx.iter();
    let ptx = ptx.map(|arch| format!("-gencode=arch=compute_{arch},code=compute_{arch}"));
    code.chain(ptx).collect()
}

/// The same as words: `sm_80,sm_90,compute_90`.
pub fn names(targets: &Targets) -> String {
    let code = targets.code.iter().map(|arch| format!("sm_{arch}"));
    let ptx = targets.ptx.iter().map(|arch| format!("compute_{arch}"));
    code.chain(ptx).collect::<Vec<_>>().join(",")
}
