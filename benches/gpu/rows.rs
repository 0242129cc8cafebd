//! Rows that both sides draw by themselves; their loss falls.

use meshloom::ir::Literal;
use meshloom_nn::Batch;
use meshloom_train::{Dataset, Error, Model};

/// Drawn tokens: few often and most seldom, as in text. `rows_of` in `benches/jax/gpu.py` draws the same.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub vocab: usize,
    pub seq: usize,
}

impl Rows {
    fn token(&self, number: u64) -> i32 {
        let mixed = [0x7feb_352d, 0x846c_a68b]
            .iter()
            .fold(number as u32, |bits: u32, &factor: &u32| (bits ^ (bits >> 16)).wrapping_mul(factor));
        let share = u64::from(mixed >> 16);
        let square = (share * share) >> 16;
        ((square * square * self.vocab as u64) >> 32) as i32
    }
}

impl<M: Model<Batch<Literal> = Batch<Literal>>> Dataset<M> for Rows {
    fn batch(&self, _seed: u64, step: u64, rows: usize) -> Result<Batch<Literal>, Error> {
        let (seq, dims) = (self.seq, [rows, self.seq]);
        let first = step * (rows * (seq + 1)) as u64;
        let of = |value: &dyn Fn(usize, usize) -> i32| {
            let numbers: Vec<i32> = (0..rows * seq).map(|at| value(at / seq, at % seq)).collect();
            Literal::from_slice(&dims, &numbers)
        };
        let token = |row: usize, at: usize| self.token(first + (row * (seq + 1) + at) as u64);
        Ok(Batch {
            tokens: of(&token)?,
            targets: of(&|row, at| token(row, at + 1))?,
            segment_ids: of(&|_, _| 1)?,
            positions: of(&|_, at| at as i32)?,
            weights: Literal::from_slice(&dims, &vec![1f32; rows * seq])?,
        })
    }
}
