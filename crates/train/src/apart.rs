//! A replica that trains apart from the others: what it does between two steps when a fragment syncs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::checkpoint::{About, Checkpoint, write_leaves};
use crate::error::{Error, Execution};
use crate::exchange::{Exchange, Judge, Round};
use crate::peers::Peers;
use crate::run::{DilocoStateOf, DilocoStep, Model, Run, RunState, RunStateOf, RunStep, TrainState};
use meshloom::compile::{Lowered, Program};
use meshloom::ir::{DType, InternalError, Literal, TensorType};
use meshloom::pjrt::{Array, Platform};
use meshloom::trace::{Function, MapTree, Param, Specs, Tensor, TensorSpec, Tree};
use meshloom::transform::diloco::{Diloco, DilocoState, Fragment, OuterState, Schedule, Share};

/// A sync that a replica cannot do.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApartError {
    /// The run does not know the others.
    #[error(
        "diloco.apart is true, but this run does not know the other replicas: start it by --replica N, or give it an Exchange"
    )]
    Alone,
    /// A message is not what this replica sends.
    #[error(
        "a message of the round after step {round} has {found} bytes, not {expected}: replicas must run the same version of meshloom"
    )]
    Message {
        /// The round.
        round: u64,
        /// Bytes that a message has.
        expected: usize,
        /// Bytes that it has.
        found: usize,
    },
    /// Outer parameters are on their way.
    #[error("the sync after step {round} is under way, and not part of the state yet: call Trainer::complete first")]
    UnderWay {
        /// The round.
        round: u64,
    },
    /// The machine's fault.
    #[error("there is no folder for the outer state that another replica is to take: {reason}")]
    Folder {
        /// What the system says.
        reason: String,
    },
    /// A replica of several processes has no folder that all of them see.
    #[error(
        "a replica of several processes needs --checkpoint DIR on a shared file system: others take its state from there"
    )]
    NoFolder,
}

meshloom::hlo::debug_is_message!(ApartError);

/// The programs of a sync, of the fragments that have as many layers.
struct SharePrograms {
    share: Share,
    message: Program,
    decoded: Program,
    added: Program,
    updated: Program,
    come_in: Program,
}

impl SharePrograms {
    /// The types of the parts of a message.
    fn types(&self) -> Vec<TensorType> {
        self.decoded.inputs().iter().map(|spec| spec.ty.clone()).collect()
    }
}

/// The same, before they are compiled.
pub(crate) struct LoweredShare {
    share: Share,
    lowered: [Lowered; 5],
}

/// All that a replica apart has beside its train step, before it is compiled.
pub(crate) struct LoweredApart {
    shares: Vec<LoweredShare>,
    taken_over: Lowered,
}

/// A replica among others.
pub(crate) struct Apart {
    exchange: Arc<dyn Exchange>,
    pub(crate) diloco: Diloco,
    shares: Vec<SharePrograms>,
    taken_over: Program,
    /// The round whose outer parameters are on their way.
    under_way: Option<u64>,
    /// Where the outer state lies that others take.
    folder: Option<tempfile::TempDir>,
    /// Seconds that the last step waited for others.
    pub(crate) wait_seconds: f64,
    time_limit: f64,
    /// The largest norm of a message that counts; 0 for no limit.
    max_norm: f64,
}

impl<M: Model> Run<M> {
    /// What a replica apart runs beside its train step; none of other runs.
    pub(crate) fn lower_apart(&self, platform: &Platform) -> Result<Option<LoweredApart>, Error> {
        let RunStep::Diloco(step) = &self.step else { return Ok(None) };
        if step.apart.is_none() {
            return Ok(None);
        }
        let shares = step.diloco.shares().into_iter().map(|share| self.lower_share(step, share, platform));
        let shares = shares.collect::<Result<_, _>>()?;
        let (state, number) = (specs_of(step), TensorSpec::new(DType::S32, []));
        let taken_over = Function::trace("diloco_taken_over", Specs((state.clone(), number)), |(state, number)| {
            let inner: TrainState<Tensor, _> = state.inner;
            let inner = TrainState { step: number.reshape([1]), ..inner };
            step.diloco.taken_over(DilocoState { inner, outer: state.outer, step: number })
        })?;
        let taken_over = self.lower_sync(taken_over.with_output_specs(&state)?, state.leaves().len(), platform)?;
        Ok(Some(LoweredApart { shares, taken_over }))
    }

    fn lower_share(&self, step: &DilocoStep<M>, share: Share, platform: &Platform) -> Result<LoweredShare, Error> {
        let (state, number) = (specs_of(step), TensorSpec::new(DType::S32, []));
        let gradients = step.diloco.gradient_specs(share);
        let message =
            Function::trace("diloco_message", Specs((state.clone(), number.clone())), |(state, fragment)| {
                step.diloco.message((share, fragment), &state)
            })?;
        // Of dimensions without names, each device has all.
        let whole = |spec: &TensorSpec| {
            let rank = spec.ty.rank();
            TensorSpec::new(spec.ty.dtype, &spec.ty.dims[..]).with_axes(&vec![""; rank])
        };
        let sent: Vec<TensorSpec> = message.outputs().iter().map(whole).collect();
        let message = message.with_output_specs(&sent)?;
        let decoded = Function::trace("diloco_decoded", Specs(sent), |message| step.diloco.decoded(share, message))?;
        let two = Specs((gradients.clone(), gradients.clone()));
        let added = Function::trace("diloco_added", two, |(sum, more): (Vec<Tensor>, Vec<Tensor>)| {
            sum.into_iter().zip(more).map(|(sum, more)| sum + more).collect::<Vec<_>>()
        })?;
        let of_update =
            Specs((state.outer.clone(), number.clone(), gradients.clone(), TensorSpec::new(DType::F32, [])));
        let updated = Function::trace("diloco_updated", of_update, |(outer, fragment, sum, count)| {
            step.diloco.updated((share, fragment), &outer, sum, count)
        })?;
        let come_in = Function::trace("diloco_come_in", Specs((state.clone(), number)), |(state, fragment)| {
            step.diloco.come_in((share, fragment), state)
        })?;
        let (of_outer, of_state) = (state.outer.leaves().len(), state.leaves().len());
        let lowered = [
            self.lower_sync(message, 0, platform)?,
            self.lower_sync(decoded.with_output_specs(&gradients)?, 0, platform)?,
            self.lower_sync(added.with_output_specs(&gradients)?, gradients.len(), platform)?,
            self.lower_sync(updated.with_output_specs(&state.outer)?, of_outer, platform)?,
            self.lower_sync(come_in.with_output_specs(&state)?, of_state, platform)?,
        ];
        Ok(LoweredShare { share, lowered })
    }

    /// A program whose first `replaced` inputs are replaced by its first outputs.
    fn lower_sync<I, O>(&self, function: Function<I, O>, replaced: usize, platform: &Platform) -> Result<Lowered, Error>
    where
        I: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
        O: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    {
        let aliases = (0..replaced).map(|index| (index, index)).collect();
        self.lower_beside_step(function.graph(), aliases, platform)
    }
}

fn specs_of<M: Model>(step: &DilocoStep<M>) -> DilocoStateOf<M, TensorSpec> {
    step.state().map(|_, param| param.spec.clone())
}

impl LoweredApart {
    /// Compiles all programs.
    pub(crate) fn compile(
        &self,
        (exchange, diloco): (Arc<dyn Exchange>, Diloco),
        (time_limit, max_norm): (f64, f64),
        mut compile: impl FnMut(&Lowered) -> Result<Program, Error>,
    ) -> Result<Apart, Error> {
        let mut shares = Vec::new();
        for LoweredShare { share, lowered: [message, decoded, added, updated, come_in] } in &self.shares {
            shares.push(SharePrograms {
                share: *share,
                message: compile(message)?,
                decoded: compile(decoded)?,
                added: compile(added)?,
                updated: compile(updated)?,
                come_in: compile(come_in)?,
            });
        }
        let taken_over = compile(&self.taken_over)?;
        let (under_way, folder, wait_seconds) = (None, None, 0.0);
        Ok(Apart { exchange, diloco, shares, taken_over, under_way, folder, wait_seconds, time_limit, max_norm })
    }
}

impl Apart {
    /// Begins with the others. Returns the state, and the steps that it is after.
    pub(crate) fn begin<M: Model>(
        &mut self,
        (form, step): (&str, u64),
        state: RunStateOf<M, Array>,
        declared: &RunStateOf<M, Param>,
        giving: &Giving<'_>,
    ) -> Result<(RunStateOf<M, Array>, u64), Error> {
        let beginning = self.exchange.begin(form, step)?;
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

    /// What messages are made of, a line for each share.
    pub(crate) fn messages(&self) -> Vec<String> {
        let types = |programs: &SharePrograms| programs.types().iter().map(TensorType::to_string).collect::<Vec<_>>();
        let line = |programs: &SharePrograms| format!("{:?} = {}", programs.share, types(programs).join(" "));
        self.shares.iter().map(line).collect()
    }

    /// Whether something happens after this step.
    pub(crate) fn is_busy_after(schedule: Schedule, step: u64) -> bool {
        let event = schedule.after_step(step as usize);
        event.sent.is_some() || event.applied.is_some()
    }

    /// What happens after a step.
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
            self.exchange.send(step, step + self.diloco.schedule().overlap() as u64, message, judge)?;
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
        let Round { messages, gives } = self.exchange.receive(round)?;
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
                return Err(format!("its norm is {norm}, and diloco.max_norm is {max_norm}"));
            }
            Ok(())
        })
    }

    /// An error where outer parameters are on their way.
    pub(crate) fn check_complete(&self) -> Result<(), ApartError> {
        self.under_way.map_or(Ok(()), |round| Err(ApartError::UnderWay { round }))
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
        state: &OuterState<crate::run::Params<M, Array>>,
        declared: &OuterState<crate::run::Params<M, Param>>,
        giving: &Giving<'_>,
    ) -> Result<(), Error> {
        let directory = match (giving.peers, &giving.directory) {
            (None, _) => {
                let folder = tempfile::tempdir();
                let folder = folder.map_err(|error| ApartError::Folder { reason: error.to_string() })?;
                self.folder.insert(folder).path().to_owned()
            }
            (Some(_), Some(directory)) => directory.join(GIVEN),
            (Some(_), None) => return Err(ApartError::NoFolder.into()),
        };
        let about = About { step, ..giving.about.clone() };
        let folder = write_leaves(&directory, about, (declared, state), giving.peers)?;
        Ok(self.exchange.give(step, &folder)?)
    }
}

/// The folder beside the checkpoints of a replica of several processes in which others find the outer state.
const GIVEN: &str = "given";

/// What is needed to give the outer state to others.
pub(crate) struct Giving<'a> {
    /// What the run is.
    pub(crate) about: About,
    /// The processes of the replica, if it has several ..
    pub(crate) peers: Option<&'a dyn Peers>,
    /// .. and a folder that all of them see.
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
        return Err(ApartError::Message { round, expected, found }.into());
    }
    let mut rest = message;
    let part = |ty: &TensorType| {
        let (part, behind) = rest.split_at(ty.byte_count());
        rest = behind;
        Ok(Literal::from_bytes(ty.clone(), part.to_vec())?)
    };
    types.iter().map(part).collect()
}
