//! A replica that trains apart from the others: what it does between two steps when a fragment syncs.

mod programs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::{About, Checkpoint, write_leaves};
use crate::error::{Error, Execution, SyncError};
use crate::peers::{Judge, Peers, ReplicaLink, Round};
use crate::run::{Model, Params, RunState, RunStateOf, execute, laid_out_for};
use meshloom::compile::{Lowered, Program};
use meshloom::ir::{InternalError, Literal, TensorType};
use meshloom::pjrt::Array;
use meshloom::trace::{MapTree, Param, Tree};
use meshloom::transform::diloco::{Diloco, Fragment, OuterState};
pub(crate) use programs::LoweredReplica;
use programs::{ReplicaPrograms, SharePrograms};

/// A replica among others.
pub(crate) struct Replica {
    link: Arc<dyn ReplicaLink>,
    pub(crate) diloco: Diloco,
    shares: Vec<SharePrograms>,
    taken_over: Program,
    /// The round whose outer parameters are on their way.
    under_way: Option<u64>,
    /// The folder of the outer state that others take.
    folder: Option<tempfile::TempDir>,
    /// Seconds that the last step waited for others.
    pub(crate) wait_seconds: f64,
    time_limit: f64,
    /// The largest norm of a message that counts; 0 for no limit.
    max_norm: f64,
}

impl Replica {
    /// Compiles the programs of a replica, which reaches the others by `link`. A call of one takes `time_limit` seconds
    /// at most (0 for no limit), and a message whose norm is more than `max_norm` does not count (0 for no limit).
    pub(crate) fn compile(
        lowered: &LoweredReplica,
        (link, diloco): (Arc<dyn ReplicaLink>, Diloco),
        (time_limit, max_norm): (f64, f64),
        compile: impl FnMut(&Lowered) -> Result<Program, Error>,
    ) -> Result<Replica, Error> {
        let ReplicaPrograms { shares, taken_over } = lowered.compile(compile)?;
        let (under_way, folder, wait_seconds) = (None, None, 0.0);
        Ok(Replica { link, diloco, shares, taken_over, under_way, folder, wait_seconds, time_limit, max_norm })
    }

    /// Begins with the others. Returns the state, and the steps that it is after.
    pub(crate) fn begin<M: Model>(
        &mut self,
        (form, step): (&str, u64),
        state: RunStateOf<M, Array>,
        declared: &RunStateOf<M, Param>,
        giving: &Giving<'_>,
    ) -> Result<(RunStateOf<M, Array>, u64), Error> {
        let beginning = self.link.begin(form, step)?;
        let RunState::Diloco(declared) = declared else { return Err(not_apart()) };
        if beginning.gives {
            self.give::<M>(beginning.step, &outer_of(&state)?, &declared.outer, giving)?;
        }
        let Some(folder) = beginning.taken else { return Ok((state, beginning.step)) };
        let checkpoint = Checkpoint::open(folder)?;
        let (mut leaves, program) = (state.leaves(), &self.taken_over);
        let (of_inner, of_outer) = (declared.inner.leaves().len(), declared.outer.leaves().len());
        let outer = of_inner..of_inner + of_outer;
        let executable = program.executable();
        let specs = &program.inputs()[outer.clone()];
        let taken = checkpoint.load(&declared.outer, specs, executable.client(), executable.devices())?;
        leaves.splice(outer, taken);
        let number = program.put(leaves.len(), &scalar(beginning.step))?;
        leaves.push(number);
        let leaves = self.run(program, beginning.step, leaves)?;
        Ok((state.fill(leaves)?, beginning.step))
    }

    /// The parts of messages, a line for each share.
    pub(crate) fn messages(&self) -> Vec<String> {
        let types = |programs: &SharePrograms| programs.types().iter().map(TensorType::to_string).collect::<Vec<_>>();
        let line = |programs: &SharePrograms| format!("{:?} = {}", programs.share, types(programs).join(" "));
        self.shares.iter().map(line).collect()
    }

    /// Sends and applies the fragments that are due after a step.
    pub(crate) fn after_step<M: Model>(
        &mut self,
        (step, mut state): (u64, RunStateOf<M, Array>),
        declared: &RunStateOf<M, Param>,
        giving: &Giving<'_>,
    ) -> Result<RunStateOf<M, Array>, Error> {
        let event = self.diloco.schedule().after_step(step as usize);
        if let Some(fragment) = event.sent {
            let (programs, number) = self.programs(fragment)?;
            let mut arguments = state.leaves();
            arguments.push(programs.message.put(arguments.len(), &Literal::scalar(number))?);
            let parts = self.run(&programs.message, step, arguments)?;
            let mut message = Vec::new();
            for part in parts {
                let own = part.layout().own_devices().next().unwrap_or(0);
                message.extend_from_slice(part.shard(own)?.bytes());
            }
            let judge = self.judge(programs, step);
            self.link.send(step, step + self.diloco.schedule().overlap() as u64, message, judge)?;
            self.under_way = Some(step);
        }
        if let Some(fragment) = event.applied {
            state = self.complete::<M>(state, declared, giving)?;
            let (programs, number) = self.programs(fragment)?;
            let mut arguments = state.leaves();
            arguments.push(programs.come_in.put(arguments.len(), &Literal::scalar(number))?);
            let leaves = self.run(&programs.come_in, step, arguments)?;
            state = state.fill(leaves)?;
        }
        Ok(state)
    }

    /// Waits for the messages that are on their way, if any are, and replaces the outer parameters, which others may
    /// then take.
    pub(crate) fn complete<M: Model>(
        &mut self,
        state: RunStateOf<M, Array>,
        declared: &RunStateOf<M, Param>,
        giving: &Giving<'_>,
    ) -> Result<RunStateOf<M, Array>, Error> {
        let Some(round) = self.under_way.take() else { return Ok(state) };
        let start = Instant::now();
        let Round { messages, gives } = self.link.receive(round)?;
        self.wait_seconds += start.elapsed().as_secs_f64();
        let fragment = self.diloco.schedule().after_step(round as usize).sent;
        let fragment = fragment.ok_or_else(|| Error::from(InternalError::new("a round", "a fragment")))?;
        let (programs, number) = self.programs(fragment)?;
        let mut sum: Option<Vec<Array>> = None;
        let (count, types) = (messages.len(), programs.types());
        for message in messages {
            let arguments = programs.decoded.put(0, &parts_of(&types, round, &message)?)?;
            let gradients = self.run(&programs.decoded, round, arguments)?;
            sum = Some(match sum {
                None => gradients,
                Some(sum) => self.run(&programs.added, round, [sum, gradients].concat())?,
            });
        }
        let state = match sum {
            // No message counts, so the outer parameters stay as they are.
            None => state,
            Some(sum) => {
                let (mut leaves, outer) = (state.leaves(), outer_of(&state)?);
                let outer_count = outer.leaves().len();
                let mut arguments = outer.leaves();
                arguments.push(programs.updated.put(arguments.len(), &Literal::scalar(number))?);
                arguments.extend(sum);
                arguments.push(programs.updated.put(arguments.len(), &Literal::scalar(count as f32))?);
                let outer = self.run(&programs.updated, round, arguments)?;
                // Behind them is the number of steps.
                let end = leaves.len() - 1;
                leaves.splice(end - outer_count..end, outer);
                state.fill(leaves)?
            }
        };
        if gives {
            let RunState::Diloco(declared) = declared else { return Err(not_apart()) };
            let use_at = round + self.diloco.schedule().overlap() as u64;
            self.give::<M>(use_at, &outer_of(&state)?, &declared.outer, giving)?;
        }
        Ok(state)
    }

    /// Judges the messages of a round before they are taken: their length, that their numbers are finite, and their
    /// norm.
    fn judge(&self, programs: &SharePrograms, round: u64) -> Judge {
        let types = programs.types();
        let (diloco, share, max_norm) = (self.diloco.clone(), programs.share, self.max_norm);
        Arc::new(move |message| {
            let parts = parts_of(&types, round, message).map_err(|error| error.to_string())?;
            let norm = diloco.message_norm(share, &parts);
            if !norm.is_finite() {
                return Err("it has numbers that are not finite".to_owned());
            }
            if max_norm > 0.0 && norm > max_norm {
                return Err(format!("its norm is {norm}, and diloco.apart.max_norm is {max_norm}"));
            }
            Ok(())
        })
    }

    /// An error where outer parameters are on their way.
    pub(crate) fn check_complete(&self) -> Result<(), SyncError> {
        self.under_way.map_or(Ok(()), |round| Err(SyncError::UnderWay { round }))
    }

    fn programs(&self, fragment: Fragment) -> Result<(&SharePrograms, i32), Error> {
        let share = self.diloco.share(fragment);
        let programs = self.shares.iter().find(|programs| programs.share == share);
        let number = if let Fragment::Part(number) = fragment { number as i32 } else { 0 };
        Ok((programs.ok_or_else(|| InternalError::new("a fragment", "its programs"))?, number))
    }

    fn run(&self, program: &Program, step: u64, arguments: Vec<Array>) -> Result<Vec<Array>, Error> {
        let arguments = laid_out_for(program, arguments)?;
        let arguments: Vec<&Array> = arguments.iter().collect();
        execute(Execution::Sync(step), program, &arguments, self.time_limit)
    }

    /// Writes the outer state to where others can read it.
    fn give<M: Model>(
        &mut self,
        step: u64,
        state: &OuterState<Params<M, Array>>,
        declared: &OuterState<Params<M, Param>>,
        giving: &Giving<'_>,
    ) -> Result<(), Error> {
        let directory = match (giving.peers, &giving.directory) {
            (None, _) => {
                let folder = tempfile::tempdir();
                let folder = folder.map_err(|error| SyncError::Folder { reason: error.to_string() })?;
                self.folder.insert(folder).path().to_owned()
            }
            (Some(_), Some(directory)) => directory.join(GIVEN),
            (Some(_), None) => return Err(SyncError::NoFolder.into()),
        };
        let about = About { step, ..giving.about.clone() };
        let folder = write_leaves(&directory, about, (declared, state), giving.peers)?;
        Ok(self.link.give(step, &folder)?)
    }
}

/// The folder beside the checkpoints of a replica of several processes in which others find the outer state.
const GIVEN: &str = "given";

/// The things that are needed to give the outer state to others.
pub(crate) struct Giving<'a> {
    /// The run, and the place in it.
    pub(crate) about: About,
    /// The processes of the replica, if it has several.
    pub(crate) peers: Option<&'a dyn Peers>,
    /// A folder that all processes of the replica see.
    pub(crate) directory: Option<PathBuf>,
}

fn outer_of<P: Clone, T: Clone>(state: &RunState<T, P>) -> Result<OuterState<P>, Error> {
    match state {
        RunState::Diloco(state) => Ok(state.outer.clone()),
        RunState::Single(_) => Err(not_apart()),
    }
}

fn not_apart() -> Error {
    InternalError::new("a replica apart", "the state of DiLoCo").into()
}

fn scalar(step: u64) -> Literal {
    Literal::scalar(i32::try_from(step).unwrap_or(i32::MAX))
}

/// A message in parts of these types, as the program takes it that reads it.
fn parts_of(types: &[TensorType], round: u64, message: &[u8]) -> Result<Vec<Literal>, Error> {
    let (expected, found) = (types.iter().map(TensorType::byte_count).sum(), message.len());
    if expected != found {
        return Err(SyncError::Message { round, expected, found }.into());
    }
    let mut rest = message;
    let part = |ty: &TensorType| {
        let (part, behind) = rest.split_at(ty.byte_count());
        rest = behind;
        Ok(Literal::from_bytes(ty.clone(), part.to_vec())?)
    };
    types.iter().map(part).collect()
}
