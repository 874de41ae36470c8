//! Products of codes with scales, by cuBLASLt or by a plain loop.

use warpool::convert::{E4m3, E5m2, Float8, Narrow};
use warpool::{Pool, PoolBuf, Stream};

use super::Outcome;

/// A format of codes.
pub trait Code: Float8 + Narrow + Into<f32> {
    /// The largest value.
    const MOST: f32;
    /// Whether it is E5M2.
    const FIVE: bool;
}

impl Code for E4m3 {
    const MOST: f32 = 448.0;
    const FIVE: bool = false;
}

impl Code for E5m2 {
    const MOST: f32 = 57344.0;
    const FIVE: bool = true;
}

/// A matrix in rows along the inner dimension, and its scale.
#[derive(Clone, Copy)]
pub struct Operand<'a, Q: Code> {
    pub codes: &'a PoolBuf<Q>,
    pub scale: &'a PoolBuf<f32>,
}

impl<Q: Code> Operand<'_, Q> {
    fn values(&self) -> Outcome<Vec<f32>> {
        let (codes, scale) = (self.codes.download()?, self.scale.download()?);
        Ok(codes
            .into_iter()
            .map(|code| code.into() * scale[0])
            .collect())
    }
}

/// `left`, with n rows, times the transpose of `right`, with m rows; both have k columns.
pub fn by_rows(left: &[f32], right: &[f32], [n, m, k]: [usize; 3]) -> Vec<f32> {
    let mut product = Vec::with_capacity(n * m);
    for row in left.chunks_exact(k) {
        let column = |column: &[f32]| row.iter().zip(column).map(|(a, b)| a * b).sum::<f32>();
        product.extend(right.chunks_exact(k).map(column));
    }
    product
}

/// The implementation of products.
pub enum Products {
    Loop,
    #[cfg(feature = "cudarc")]
    CublasLt(Box<super::cublaslt::CublasLt>),
}

impl Products {
    /// cuBLASLt if it is available.
    pub fn best(stream: &Stream, pool: &Pool) -> Outcome<Self> {
        #[cfg(feature = "cudarc")]
        if let Some(library) = super::cublaslt::CublasLt::open(stream, pool)? {
            return Ok(Self::CublasLt(Box::new(library)));
        }
        let _ = (stream, pool);
        Ok(Self::Loop)
    }

    pub fn what(&self) -> &'static str {
        match self {
            Self::Loop => {
                "a plain loop over the codes' values multiplies: cuBLASLt needs the feature `cudarc`, \
                 its library and a GPU with 8-bit products"
            }
            #[cfg(feature = "cudarc")]
            Self::CublasLt(_) => "cuBLASLt multiplies",
        }
    }

    /// The same as [`by_rows`], with the codes' values; queued on `stream`.
    pub fn multiply<A: Code, B: Code>(
        &mut self,
        stream: &Stream,
        left: Operand<'_, A>,
        right: Operand<'_, B>,
        product: &mut PoolBuf<f32>,
        shape: [usize; 3],
    ) -> Outcome<()> {
        match self {
            Self::Loop => {
                let _ = stream;
                let values = by_rows(&left.values()?, &right.values()?, shape);
                Ok(product.upload(&values)?)
            }
            #[cfg(feature = "cudarc")]
            Self::CublasLt(library) => library.multiply(stream, left, right, product, shape),
        }
    }
}
