//! Models that can be trained, with parameters and a loss, and data for them.

use std::fmt::Debug;
use std::ops::Range;

use crate::Error;
use crate::data::DataDigest;
use meshloom::ir::Literal;
use meshloom::pjrt::Array;
use meshloom::trace::{MapTree, Param, Tensor, TensorSpec, Tree};
use meshloom_nn::{Batch, Decoder, DecoderConfig, Dropout, TokenOrder, WholeBatch};

/// The leaves that the trees of a model may have: declarations, types, traced tensors, or values on the host or on
/// devices.
pub trait Leaf:
    Tree<Leaf = Self>
    + MapTree<Param, Mapped = Param>
    + MapTree<TensorSpec, Mapped = TensorSpec>
    + MapTree<Tensor, Mapped = Tensor>
    + MapTree<Literal, Mapped = Literal>
    + MapTree<Array, Mapped = Array>
    + Clone
    + Debug
{
}

impl<T> Leaf for T where
    T: Tree<Leaf = T>
        + MapTree<Param, Mapped = Param>
        + MapTree<TensorSpec, Mapped = TensorSpec>
        + MapTree<Tensor, Mapped = Tensor>
        + MapTree<Literal, Mapped = Literal>
        + MapTree<Array, Mapped = Array>
        + Clone
        + Debug
{
}

/// A model that can be trained.
///
/// Sharding rules, optimizer, microbatches, DiLoCo, checkpoints and metrics work for any model: they see its parameters
/// by their paths and the names of their dimensions. The model itself decides how its layers run, as a scan or as a
/// [pipeline](meshloom::transform::pipeline).
///
/// A struct that [`tree!`](meshloom::tree) declares is a tree over any leaf, as both associated types must be.
pub trait Model: Clone + Debug + 'static {
    /// The tree of the parameters.
    type Params<T: Leaf>: Tree<Leaf = T>
        + MapTree<Param, Mapped = Self::Params<Param>>
        + MapTree<TensorSpec, Mapped = Self::Params<TensorSpec>>
        + MapTree<Tensor, Mapped = Self::Params<Tensor>>
        + MapTree<Literal, Mapped = Self::Params<Literal>>
        + MapTree<Array, Mapped = Self::Params<Array>>
        + Clone
        + Debug;

    /// The tree of a batch. The first dimension of every leaf is that of the rows.
    type Batch<T: Leaf>: Tree<Leaf = T>
        + MapTree<TensorSpec, Mapped = Self::Batch<TensorSpec>>
        + MapTree<Tensor, Mapped = Self::Batch<Tensor>>
        + MapTree<Literal, Mapped = Self::Batch<Literal>>
        + MapTree<Array, Mapped = Self::Batch<Array>>
        + Clone
        + Debug;

    /// The declarations of the parameters.
    fn parameters(&self) -> Self::Params<Param>;

    /// The types of a batch of `rows` rows. `length` is `model.seq`: tokens of a row, where rows have tokens.
    fn batch_specs(&self, rows: usize, length: usize) -> Self::Batch<TensorSpec>;

    /// Returns the facts about the whole batch that the loss of a part of it needs, in one part.
    fn whole_batch(&self, batch: &Self::Batch<Tensor>) -> WholeBatch;

    /// Returns the share of a batch's loss that some of its rows contribute, a scalar `f32`. The losses of the parts
    /// add up to the loss of the batch.
    fn loss(
        &self,
        params: &Self::Params<Tensor>,
        part: &Self::Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> Tensor;

    /// The order in which the tokens of a row are, where rows have tokens: each batch of a [`Dataset`], which has them
    /// in the natural order, is arranged so before it goes to the devices, along the second dimension of its leaves.
    fn token_order(&self) -> TokenOrder {
        TokenOrder::default()
    }

    /// The model as it is judged: without what only training adds to its loss.
    fn for_evaluation(&self) -> Self {
        self.clone()
    }
}

/// The data that a model is trained on, and judged by.
pub trait Dataset<M: Model>: Send + Sync + 'static {
    /// The batch of a step, counted from 0. It must depend on nothing but the arguments: then runs on different meshes
    /// see the same data, and a resumed run continues where it stopped.
    ///
    /// # Errors
    /// There is no such batch.
    fn batch(&self, seed: u64, step: u64, rows: usize) -> Result<M::Batch<Literal>, Error>;

    /// Returns a batch for a process that needs only some rows: those that its devices take. The others may be
    /// anything.
    ///
    /// # Errors
    /// The errors are those of [`Dataset::batch`].
    fn rows(&self, seed: u64, step: u64, rows: usize, _own: Range<usize>) -> Result<M::Batch<Literal>, Error> {
        self.batch(seed, step, rows)
    }

    /// Returns rows of the validation set, which are always the same. Rows behind its last are filled with values that
    /// have no weight in the loss. Returns `None` if the set has none of these rows, because there is no validation set
    /// or it ends before them.
    ///
    /// # Errors
    /// They cannot be read.
    fn validation(&self, _rows: Range<u64>) -> Result<Option<M::Batch<Literal>>, Error> {
        Ok(None)
    }

    /// Returns the weight of a batch of the validation set in the mean loss; for text, the number of its targets.
    fn weight(&self, _batch: &M::Batch<Literal>) -> f64 {
        1.0
    }

    /// Bytes of the validation set for each of its tokens, if it is text.
    fn bytes_per_token(&self) -> Option<f64> {
        None
    }

    /// Returns the digests of the files that the data is read from. Checkpoints store them, and a run that goes on from
    /// one is warned of changed files.
    fn digests(&self) -> Vec<DataDigest> {
        Vec::new()
    }

    /// Warnings for its user.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Model for DecoderConfig {
    type Params<T: Leaf> = Decoder<T>;
    type Batch<T: Leaf> = Batch<T>;

    fn parameters(&self) -> Decoder<Param> {
        DecoderConfig::parameters(self)
    }

    fn batch_specs(&self, rows: usize, length: usize) -> Batch<TensorSpec> {
        DecoderConfig::batch_specs(self, rows, length)
    }

    fn whole_batch(&self, batch: &Batch<Tensor>) -> WholeBatch {
        WholeBatch::of(batch.weights)
    }

    fn loss(
        &self,
        params: &Decoder<Tensor>,
        part: &Batch<Tensor>,
        whole: WholeBatch,
        dropout: Option<Dropout>,
    ) -> Tensor {
        self.loss_of_part(params, part, whole, dropout)
    }

    fn token_order(&self) -> TokenOrder {
        self.order
    }

    /// The cross entropy of the next token alone.
    fn for_evaluation(&self) -> DecoderConfig {
        DecoderConfig {
            z_loss: 0.0,
            load_balance_weight: 0.0,
            further_weight: 0.0,
            choice_bias_gradient: false,
            ..self.clone()
        }
    }
}
