//! Batches that are made while the devices work on those before.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use super::token_order::arranged;
use crate::Error;
use crate::run::{Dataset, Model};
use meshloom::ir::{InternalError, Literal};
use meshloom::trace::Tree;
use meshloom_nn::TokenOrder;

/// A thread that makes the batches of a run, one step after the other. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Prefetch {
    /// The channel of each batch's leaves; `None` once the thread is to end.
    batches: Option<Receiver<Result<Vec<Literal>, Error>>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts to read batches from a step on. A batch has `rows` rows. This process needs the rows `own`, with their
    /// tokens in this order. At most `ahead` batches wait.
    pub(super) fn start<M: Model, D: Dataset<M>>(
        data: Arc<D>,
        ((seed, first, rows), own): ((u64, u64, usize), Range<usize>),
        order: TokenOrder,
        ahead: usize,
    ) -> Prefetch {
        let (sender, batches) = sync_channel(ahead);
        let make = move || {
            for step in first.. {
                let batch = data.rows(seed, step, rows, own.clone()).and_then(|batch| arranged(order, batch.leaves()));
                let is_last = batch.is_err();
                if sender.send(batch).is_err() || is_last {
                    break;
                }
            }
        };
        Prefetch { batches: Some(batches), thread: Some(thread::spawn(make)) }
    }

    /// The batch of the next step. After an error there is none.
    pub(super) fn next(&self) -> Result<Vec<Literal>, Error> {
        let next = self.batches.as_ref().and_then(|batches| batches.recv().ok());
        next.unwrap_or_else(|| Err(InternalError::new("the thread that reads the data", "one batch more").into()))
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // The thread may wait for a place in the channel. It then learns that the receiver is gone.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the caller that waited for a batch has had the error.
            drop(thread.join());
        }
    }
}
