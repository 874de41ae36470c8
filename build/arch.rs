//! Which GPU architectures the kernels are compiled for.
//!
//! Pure, and included by `tests/toolkit_discovery.rs` too.

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

/// What `CUDA_COMPUTE_CAP` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Unset: every architecture of [`DEFAULT`] that the compiler knows.
    Default,
    /// `native`: those of the GPUs in this machine.
    Native,
    /// Exactly these, in ascending order, each once.
    List(Vec<Arch>),
}

/// One binary for every GPU since Turing; anything newer runs the PTX of the last.
pub const DEFAULT: [u32; 7] = [75, 80, 86, 89, 90, 100, 120];

/// Reads `CUDA_COMPUTE_CAP`: `90`, `9.0`, `sm_90`, `90a`, a list separated by commas, or `native`.
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
    let mut list = value
        .split(',')
        .map(|part| parse_one(part.trim()))
        .collect::<Option<Vec<Arch>>>()
        .ok_or_else(|| {
            format!(
                "CUDA_COMPUTE_CAP={value} is no list of compute capabilities; write 90, 9.0, 90a, \
                 several separated by commas, or native"
            )
        })?;
    list.sort();
    list.dedup();
    Ok(Request::List(list))
}

fn parse_one(text: &str) -> Option<Arch> {
    let text = text.strip_prefix("sm_").unwrap_or(text);
    let suffix = text.chars().last().filter(|c| matches!(c, 'a' | 'f'));
    let digits = suffix.map_or(text, |_| &text[..text.len() - 1]);
    let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let number = match digits.split_once('.') {
        Some((major, minor)) if plain(major) && plain(minor) && minor.len() == 1 => {
            major.parse::<u32>().ok()?.checked_mul(10)? + minor.parse::<u32>().ok()?
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
pub fn choose(request: &Request, supported: &[u32]) -> Result<Vec<Arch>, String> {
    let knows = |arch: &Arch| supported.contains(&arch.number);
    let known = || {
        supported
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let plain = |&number: &u32| Arch {
        number,
        suffix: None,
    };
    let chosen: Vec<Arch> = match request {
        Request::List(list) => {
            if let Some(stranger) = list.iter().find(|arch| !knows(arch)) {
                return Err(format!(
                    "CUDA_COMPUTE_CAP asks for {stranger}, which this nvcc does not compile for; \
                     it knows {}",
                    known()
                ));
            }
            list.clone()
        }
        Request::Default | Request::Native => DEFAULT.iter().map(plain).filter(knows).collect(),
    };
    if chosen.is_empty() {
        return Err(format!(
            "this nvcc knows none of the default architectures, only {}",
            known()
        ));
    }
    Ok(chosen)
}

/// The architecture whose PTX goes in, for GPUs newer than all: the highest without a suffix,
/// since PTX with one does not run on later GPUs.
pub fn ptx(chosen: &[Arch]) -> Option<Arch> {
    chosen
        .iter()
        .copied()
        .filter(|arch| arch.suffix.is_none())
        .max()
}

/// nvcc's flags: machine code for each, and PTX.
pub fn flags(chosen: &[Arch]) -> Vec<String> {
    let code = chosen
        .iter()
        .map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    let portable =
        ptx(chosen).map(|arch| format!("-gencode=arch=compute_{arch},code=compute_{arch}"));
    code.chain(portable).collect()
}

/// The same as words: `sm_80,sm_90,compute_90`.
pub fn names(chosen: &[Arch]) -> String {
    let code = chosen.iter().map(|arch| format!("sm_{arch}"));
    let portable = ptx(chosen).map(|arch| format!("compute_{arch}"));
    code.chain(portable).collect::<Vec<_>>().join(",")
}
