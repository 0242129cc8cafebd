//! Implements the traits by which training talks to the other processes and replicas of a run.

use std::path::Path;
use std::sync::Arc;

use meshloom_train::peers::{Beginning, Judge, Peers, PeersError, ReplicaLink, ReplicaLinkError, Round};

use crate::{JoinError, Member, ReplicaError, Replicas};

impl Peers for Member {
    fn number(&self) -> usize {
        self.number()
    }

    fn count(&self) -> usize {
        self.count()
    }

    fn agree(&self, what: &str, own: &str, advice: &str) -> Result<(), PeersError> {
        self.agree(what, own, advice).map_err(apart)
    }

    fn barrier(&self, name: &str) -> Result<(), PeersError> {
        self.barrier(name).map_err(apart)
    }

    fn ask_to_end(&self, why: &str) -> Result<(), PeersError> {
        self.ask_to_end(why).map_err(apart)
    }

    fn ends_after(&self, done: u64) -> Result<Option<String>, PeersError> {
        self.ends_after(done).map_err(apart)
    }
}

fn apart(error: JoinError) -> PeersError {
    PeersError(Arc::new(error))
}

impl ReplicaLink for Replicas {
    fn number(&self) -> usize {
        self.number()
    }

    fn begin(&self, form: &str, step: u64) -> Result<Beginning, ReplicaLinkError> {
        self.begin(form, step).map_err(failed)
    }

    fn send(&self, round: u64, use_at: u64, message: Vec<u8>, judge: Judge) -> Result<(), ReplicaLinkError> {
        self.send(round, use_at, message, judge).map_err(failed)
    }

    fn receive(&self, round: u64) -> Result<Round, ReplicaLinkError> {
        self.receive(round).map_err(failed)
    }

    fn give(&self, step: u64, folder: &Path) -> Result<(), ReplicaLinkError> {
        self.give(step, folder).map_err(failed)
    }

    fn leave(&self) -> Result<(), ReplicaLinkError> {
        self.leave().map_err(failed)
    }
}

fn failed(error: ReplicaError) -> ReplicaLinkError {
    ReplicaLinkError(Arc::new(error))
}
