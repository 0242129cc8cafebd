//! Parameters of a run, read layer by layer.

use std::cell::RefCell;
use std::ops::Range;

use crate::Error;
use meshloom::ir::{InternalError, Literal, TensorType};
use meshloom::pjrt::Array;
use meshloom::trace::{LayerPath, Param, Tree};

/// Parameters on the devices of a run, in whatever form it has their layers. The host holds one of them at a time.
pub(crate) struct LiveParameters {
    /// Each with the number of its dimensions over layers.
    leaves: Vec<(LayerPath, usize, Array)>,
    /// The last one that was read, by its place.
    last: RefCell<Option<(usize, Literal)>>,
}

impl LiveParameters {
    pub(crate) fn new(params: &impl Tree<Leaf = Array>, declared: &impl Tree<Leaf = Param>) -> LiveParameters {
        let named = params.paths().into_iter().zip(params.leaves()).zip(declared.leaves());
        let leaf = |((path, array), declared): ((String, Array), Param)| {
            (LayerPath::of(&path, declared.stacked_dims > 0), declared.stacked_dims, array)
        };
        LiveParameters { leaves: named.map(leaf).collect(), last: RefCell::new(None) }
    }

    /// A parameter, of one layer if its path says a layer's number: the whole of it, as one device has.
    pub(crate) fn read(&self, path: &str, dims: &[usize], shard: &[Range<usize>]) -> Result<Literal, Error> {
        let missing = || InternalError::new("the parameters of a run", "each that its model generates text with");
        if shard.iter().zip(dims).any(|(range, &size)| *range != (0..size)) {
            return Err(InternalError::new("the parameters of a run", "one device to read them for").into());
        }
        let wanted = LayerPath::of(path, false);
        let layer = wanted.numbers.map(|numbers| numbers.first);
        let place_in = |(path, stacked, array): &(LayerPath, usize, Array)| -> Option<usize> {
            let count: usize = array.ty().dims.get(..*stacked)?.iter().product();
            match (path.numbers, layer) {
                _ if path.name != wanted.name => None,
                (None, None) => Some(0),
                (Some(numbers), Some(layer)) => {
                    let behind = layer.checked_sub(numbers.first)?;
                    let step = numbers.step.unwrap_or(1);
                    (behind.is_multiple_of(step) && behind / step < count).then_some(behind / step)
                }
                _ => None,
            }
        };
        let found = self.leaves.iter().enumerate().find_map(|(at, leaf)| Some((at, place_in(leaf)?)));
        let (at, place) = found.ok_or_else(missing)?;
        let mut last = self.last.borrow_mut();
        let literal = match last.take().filter(|(of, _)| *of == at) {
            Some((_, literal)) => literal,
            None => self.leaves[at].2.get()?,
        };
        let ty = TensorType::new(literal.ty().dtype, dims);
        let size = ty.byte_count();
        let bytes = literal.bytes().get(place * size..(place + 1) * size).ok_or_else(missing)?;
        let part = Literal::from_bytes(ty, bytes)?;
        *last = Some((at, literal));
        Ok(part)
    }
}
