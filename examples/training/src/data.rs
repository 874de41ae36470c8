//! 1,797 images of handwritten digits, 8 x 8 pixels from 0 to 16, a line each with its digit at the end: the test set of
//! E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998,
//! <https://doi.org/10.24432/C50P49>, CC BY 4.0.

use std::io::{BufRead, BufReader};

use flate2::read::GzDecoder;

pub const PIXELS: usize = 64;
pub const CLASSES: usize = 10;

/// Images in rows, and their digits.
pub struct Digits {
    pub images: Vec<f32>,
    pub labels: Vec<u32>,
}

impl Digits {
    /// All of them: `trained` rows to learn from, and the rest.
    pub fn load(trained: usize) -> std::io::Result<(Self, Self)> {
        let packed: &[u8] = include_bytes!("../data/digits.csv.gz");
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for line in BufReader::new(GzDecoder::new(packed)).lines() {
            let line = line?;
            let mut numbers = line
                .split(',')
                .map(|number| number.parse().unwrap_or(0.0f32));
            images.extend(numbers.by_ref().take(PIXELS).map(|pixel| pixel / 16.0));
            labels.extend(numbers.next().map(|digit| digit as u32));
        }
        let rest = Self {
            images: images.split_off(trained * PIXELS),
            labels: labels.split_off(trained),
        };
        Ok((Self { images, labels }, rest))
    }
}
