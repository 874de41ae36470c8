//! Products of 8-bit codes, with scales from the steps before.

use warpool::convert::{
    E4m3, E5m2, Fused, Overflow, Rounding, Rows, RowsMut, Scales, Transpose, cast_transpose,
    convert_fused, dequantize,
};
use warpool::{Pool, PoolBuf, Stream};

use super::products::{Code, Operand, Products};
use super::{BATCH, Math, Outcome, shape};

/// Number of steps whose largest magnitudes determine a scale.
pub const HISTORY: usize = 4;

/// A tensor in 8 bits, plain and transposed, and the data for its scale.
pub struct Scaled<Q: Code> {
    plain: PoolBuf<Q>,
    turned: PoolBuf<Q>,
    /// The scale: the factor from a code to its value.
    pub scale: PoolBuf<f32>,
    /// The largest magnitudes of the last steps.
    pub largest: PoolBuf<f32>,
    rows: usize,
    cols: usize,
}

impl<Q: Code> Scaled<Q> {
    pub fn new(stream: &Stream, pool: &Pool, rows: usize, cols: usize) -> Outcome<Self> {
        Ok(Self {
            plain: pool.alloc_typed(stream, rows * cols)?,
            turned: pool.alloc_typed(stream, rows * cols)?,
            scale: pool.alloc_filled(stream, 1, 1.0)?, // nothing is known before the first step
            largest: pool.alloc_zeroed(stream, HISTORY)?,
            rows,
            cols,
        })
    }

    /// Computes both results and the largest magnitude in one pass over `values`.
    pub fn cast(&mut self, stream: &Stream, values: &PoolBuf<f32>, step: usize) -> Outcome<()> {
        let (rows, cols) = (self.rows, self.cols);
        let at = step % HISTORY;
        self.largest.slice_mut(at..=at)?.fill(stream, 0.0)?;
        let how = Transpose::default()
            .how(Overflow::Saturate)
            .scale(self.scale.view())
            .amax(self.largest.slice_mut(at..=at)?);
        let plain = RowsMut::new(&mut self.plain, rows, cols, cols)?;
        let turned = RowsMut::new(&mut self.turned, cols, rows, rows)?;
        let values = Rows::new(values, rows, cols, cols)?;
        Ok(cast_transpose(stream, values, Some(plain), turned, how)?)
    }

    /// Computes the scale of the next step on the device: nothing waits for it.
    pub fn rescale(&mut self, stream: &Stream, pool: &Pool) -> Outcome<()> {
        let mut unused = pool.alloc_typed::<f32>(stream, HISTORY)?;
        let mut most = pool.alloc_zeroed::<f32>(stream, 1)?;
        let found = Fused::default().amax(most.view_mut());
        convert_fused(stream, &self.largest, &mut unused, Rounding::Nearest, found)?;
        // Not 0 if everything is 0.
        let scaled = Fused::default()
            .scale(1.0 / Q::MOST)
            .bias(f32::MIN_POSITIVE);
        convert_fused(stream, &most, &mut self.scale, Rounding::Nearest, scaled)?;
        Ok(())
    }

    fn plain(&self) -> Operand<'_, Q> {
        let (codes, scale) = (&self.plain, &self.scale);
        Operand { codes, scale }
    }

    fn turned(&self) -> Operand<'_, Q> {
        let (codes, scale) = (&self.turned, &self.scale);
        Operand { codes, scale }
    }
}

struct Layer {
    inputs: Scaled<E4m3>,
    weights: Scaled<E4m3>,
    gradient: Scaled<E5m2>,
}

/// All products in 8 bits.
pub struct Eight {
    stream: Stream,
    pool: Pool,
    products: Products,
    layers: Vec<Layer>,
    steps: usize,
}

impl Eight {
    pub fn new(stream: &Stream, pool: &Pool, products: Products) -> Outcome<Self> {
        let layer = |layer| -> Outcome<Layer> {
            let (outs, ins) = shape(layer);
            Ok(Layer {
                inputs: Scaled::new(stream, pool, BATCH, ins)?,
                weights: Scaled::new(stream, pool, outs, ins)?,
                gradient: Scaled::new(stream, pool, BATCH, outs)?,
            })
        };
        Ok(Self {
            stream: stream.clone(),
            pool: pool.clone(),
            products,
            layers: vec![layer(0)?, layer(1)?],
            steps: 0,
        })
    }

    pub fn multiply_by(&mut self, products: Products) {
        self.products = products;
    }
}

impl Math for Eight {
    fn forward(&mut self, layer: usize, inputs: &[f32], weights: &[f32]) -> Outcome<Vec<f32>> {
        let (stream, pool, (outs, ins)) = (&self.stream, &self.pool, shape(layer));
        let Layer {
            inputs: x,
            weights: w,
            ..
        } = &mut self.layers[layer];
        x.cast(stream, &pool.alloc_from(stream, inputs)?, self.steps)?;
        w.cast(stream, &pool.alloc_from(stream, weights)?, self.steps)?;
        let mut product = pool.alloc_typed(stream, BATCH * outs)?;
        let sizes = [BATCH, outs, ins];
        self.products
            .multiply(stream, x.plain(), w.plain(), &mut product, sizes)?;
        Ok(product.download()?)
    }

    /// Each product takes its operands in rows along the inner dimension. So all operands are
    /// transposed except the left one of the inputs' gradient.
    fn backward(&mut self, layer: usize, gradient: &[f32]) -> Outcome<[Vec<f32>; 2]> {
        let (stream, pool, (outs, ins)) = (&self.stream, &self.pool, shape(layer));
        let Layer {
            inputs: x,
            weights: w,
            gradient: g,
        } = &mut self.layers[layer];
        g.cast(stream, &pool.alloc_from(stream, gradient)?, self.steps)?;
        let mut of_weights = pool.alloc_typed(stream, outs * ins)?;
        let sizes = [outs, ins, BATCH];
        self.products
            .multiply(stream, g.turned(), x.turned(), &mut of_weights, sizes)?;
        let mut of_inputs = pool.alloc_typed(stream, BATCH * ins)?;
        let sizes = [BATCH, ins, outs];
        self.products
            .multiply(stream, g.plain(), w.turned(), &mut of_inputs, sizes)?;
        Ok([of_weights.download()?, of_inputs.download()?])
    }

    /// Between the passes only the codes and their scale are kept.
    fn kept(&self, layer: usize) -> Outcome<Vec<f32>> {
        let Scaled { plain, scale, .. } = &self.layers[layer].inputs;
        let mut values = self.pool.alloc_typed::<f32>(&self.stream, plain.len())?;
        dequantize(
            &self.stream,
            plain,
            Scales::Tensor(scale.view()),
            &mut values,
        )?;
        Ok(values.download()?)
    }

    fn step(&mut self) -> Outcome<()> {
        self.steps += 1;
        for Layer {
            inputs,
            weights,
            gradient,
        } in &mut self.layers
        {
            inputs.rescale(&self.stream, &self.pool)?;
            weights.rescale(&self.stream, &self.pool)?;
            gradient.rescale(&self.stream, &self.pool)?;
        }
        Ok(())
    }
}
