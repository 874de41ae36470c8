//! The variables that the suites read. One that cannot be what it is for fails the suite, which
//! says so: a long form that is asked for in vain, or a GPU, must not pass as the quick form.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::ffi::OsString;

/// A number of something, or `usual` where the variable is not set.
pub fn number(name: &str, usual: u64) -> u64 {
    number_from(name, std::env::var_os(name), usual).unwrap_or_else(|why| panic!("{why}"))
}

/// Whether the variable is set to 1.
pub fn is_on(name: &str) -> bool {
    is_on_from(name, std::env::var_os(name)).unwrap_or_else(|why| panic!("{why}"))
}

/// As [`number`], of the variable's value. Set to nothing it is not set.
pub fn number_from(name: &str, value: Option<OsString>, usual: u64) -> Result<u64, String> {
    let Some(text) = text(value) else {
        return Ok(usual);
    };
    match text.trim().parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{name}={text} is no number from 1 up")),
    }
}

/// As [`is_on`], of the variable's value. Set to nothing it is not set.
pub fn is_on_from(name: &str, value: Option<OsString>) -> Result<bool, String> {
    match text(value).as_deref().map(str::trim) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("{name}={other} is neither 0 nor 1")),
    }
}

fn text(value: Option<OsString>) -> Option<String> {
    let text = value?.to_string_lossy().into_owned();
    (!text.trim().is_empty()).then_some(text)
}
