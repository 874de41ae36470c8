//! The settings that `--large` compares.

use std::str::FromStr;

use warpool::collective::{ReducerConfig, Wire};

use super::math::Outcome;
use super::network::Sums;

/// Lists are tried in every combination.
#[derive(Debug, Clone)]
pub struct Options {
    /// Samples per GPU and step.
    pub batch: usize,
    /// Formats, by the names in [`formats`]; all if empty.
    pub only: Vec<String>,
    /// Whether sums overlap with the backward pass.
    pub overlap: Vec<bool>,
    /// MiB of [`ReducerConfig::bucket_bytes`].
    pub buckets: Vec<u64>,
}

impl Options {
    /// Parses words in the form that the example's head describes.
    ///
    /// # Errors
    /// An unknown word.
    pub fn of(words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut options = Self {
            batch: 16384,
            only: Vec::new(),
            overlap: vec![true],
            buckets: vec![32],
        };
        for word in words {
            let wrong = || format!("there is no option {word}");
            let (name, said) = word.split_once('=').ok_or_else(wrong)?;
            match name {
                "batch" => options.batch = said.parse().map_err(|_| wrong())?,
                "only" => options.only = list(said).ok_or_else(wrong)?,
                "overlap" => options.overlap = list(said).ok_or_else(wrong)?,
                "buckets" => options.buckets = list(said).ok_or_else(wrong)?,
                _ => return Err(wrong().into()),
            }
        }
        Ok(options)
    }

    /// The settings to try, each with a name.
    pub fn settings(&self) -> Vec<(String, Sums)> {
        let mut settings = Vec::new();
        for (format, config) in formats() {
            if !self.only.is_empty() && !self.only.iter().any(|only| only == format) {
                continue;
            }
            for &overlap in &self.overlap {
                for &buckets in &self.buckets {
                    let name = format!("{format} overlap={overlap} buckets={buckets}");
                    let config = config.bucket_bytes(buckets << 20);
                    settings.push((name, Sums { config, overlap }));
                }
            }
        }
        settings
    }
}

fn list<T: FromStr>(said: &str) -> Option<Vec<T>> {
    said.split(',').map(|one| one.parse().ok()).collect()
}

/// The formats of gradients, by the names that an option uses.
fn formats() -> [(&'static str, ReducerConfig); 5] {
    let plain = ReducerConfig::default();
    [
        ("f32", plain.wire(Wire::F32)),
        ("f16", plain),
        ("f16+feedback", plain.feedback(true)),
        ("bf16", plain.wire(Wire::Bf16)),
        ("e4m3+feedback", plain.wire(Wire::E4m3).feedback(true)),
    ]
}
