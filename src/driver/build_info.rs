//! The origin of this build's device kernels, or the reason that it has none.

use std::fmt;

/// The device kernels of this build, as `warpool info` prints them.
///
/// Known when the crate is compiled; nothing is read at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernels {
    /// The compiler and its version, such as `nvcc 13.0.88`; `None` if there are no kernels.
    pub toolkit: Option<&'static str>,
    /// The targets of the kernels, separated by commas: `sm_90` is machine code, and `compute_90`
    /// is PTX, which the driver compiles for GPUs newer than all of them. Empty if there are no
    /// kernels.
    pub architectures: &'static str,
    /// The reason that there are no kernels; `None` if there are some.
    pub left_out: Option<&'static str>,
}

/// The device kernels of this build.
#[must_use]
pub const fn kernels() -> Kernels {
    Kernels {
        toolkit: non_empty(env!("WARPOOL_BUILD_TOOLKIT")),
        architectures: env!("WARPOOL_BUILD_ARCHITECTURES"),
        left_out: non_empty(env!("WARPOOL_BUILD_LEFT_OUT")),
    }
}

const fn non_empty(text: &'static str) -> Option<&'static str> {
    if text.is_empty() { None } else { Some(text) }
}

impl fmt::Display for Kernels {
    /// `nvcc 13.0.88: sm_90,compute_90`, or `none: WARPOOL_CUDA=off when this was built`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.toolkit, self.left_out) {
            (Some(toolkit), _) => write!(f, "{toolkit}: {}", self.architectures),
            (None, why) => write!(f, "none: {}", why.unwrap_or("not compiled in")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_build_read_as_one_line() {
        let with = Kernels {
            toolkit: Some("nvcc 13.0.88"),
            architectures: "sm_90,compute_90",
            left_out: None,
        };
        let without = Kernels {
            toolkit: None,
            architectures: "",
            left_out: Some("no toolkit"),
        };
        assert_eq!(with.to_string(), "nvcc 13.0.88: sm_90,compute_90");
        assert_eq!(without.to_string(), "none: no toolkit");
    }
}
