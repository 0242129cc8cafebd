//! How many rows of a batch go where.

use super::RunConfig;

impl RunConfig {
    /// Number of replicas that train on their own.
    pub(crate) fn replicas(&self) -> usize {
        self.diloco.as_ref().map_or(1, |diloco| diloco.replicas)
    }

    /// Rows of the batch that each replica trains on.
    pub(crate) fn rows_of_replica(&self) -> usize {
        self.train.batch / self.replicas().max(1)
    }

    /// Rows whose gradient is computed at once: a microbatch of `train.microbatches`.
    pub(crate) fn rows_at_once(&self) -> usize {
        self.rows_of_replica() / self.train.microbatches.max(1)
    }

    /// Rows that a layer works on at once: a microbatch of the pipeline, if there is one.
    pub(crate) fn rows_of_layer(&self) -> usize {
        self.rows_at_once() / self.pipeline.as_ref().map_or(1, |pipeline| pipeline.microbatches.max(1))
    }
}
