//! Collectives whose groups cross processes, on CPU plugins, which have none: each is a custom call onto MPI.
//!
//! What a call does is written in it ([`crossing`]), so nothing is registered for a program. Calls of one device must
//! not overtake each other, or two processes could wait for one another: whoever emits them chains them. Devices of a
//! process do not wait for each other: the tag of a message says between which of its sender's and receiver's devices
//! it goes.
//!
//! A call goes on in a thread of its device's here, while the plugin's threads compute, and wait for each other in
//! collectives within the process. If it held one of these, that one could not begin what others wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshloom_hlo::crossing::{self, Combine, CrossingKind};
use meshloom_pjrt::{CallFailure, CallOperand, CallResult, ErrorCode, ForeignCall, ForeignFunction};

use crate::combine::of_type;
use crate::mpi::{Incoming, MpiError, Outgoing, World};

/// What says, of a call that has waited so long, why more of that is in vain; nothing while it is not.
pub type GiveUp = Box<dyn Fn(Duration) -> Option<String> + Send + Sync>;

/// A call, and what it is of.
type Job = (ForeignCall, crossing::Crossing, usize, Arc<Links>);

/// How long the loss of a process may take to be known after MPI has failed.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(15);

/// The processes that collectives cross to.
pub struct Links {
    world: World,
    give_up: GiveUp,
    sent: AtomicU64,
    /// The thread of each device.
    threads: Mutex<Vec<Sender<Job>>>,
    buffers: Arc<Buffers>,
}

/// Buffers that are kept between calls: what is sent and received is MPI's until the exchange is over, and the memory
/// of an operand or a result goes with its call.
#[derive(Debug, Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A buffer that is kept again when nobody has it any more.
struct Lent {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// One of this length, with whatever is in it.
    fn take(&self, length: usize) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The smallest that is large enough; else the smallest makes place for it. So there are no more than were in
        // use at once, of the sizes that are asked for.
        let fitting = kept.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= length);
        let fitting = fitting.min_by_key(|(_, buffer)| buffer.capacity()).map(|(at, _)| at);
        let smallest = || kept.iter().enumerate().min_by_key(|(_, buffer)| buffer.capacity()).map(|(at, _)| at);
        let mut buffer = match (fitting, fitting.is_none().then(smallest).flatten()) {
            (Some(at), _) => kept.swap_remove(at),
            (None, Some(at)) => {
                kept.swap_remove(at);
                Vec::new()
            }
            (None, None) => Vec::new(),
        };
        drop(kept);
        buffer.resize(length, 0);
        buffer
    }

    /// Has a buffer of its kept ones come back when the last that has a part of it is done.
    fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { bytes, buffers: self.clone() })
    }

    fn copy(self: &Arc<Self>, bytes: &[u8]) -> Bytes {
        let mut copy = self.take(bytes.len());
        copy.copy_from_slice(bytes);
        self.lend(copy)
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.buffers.0.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.bytes));
    }
}

static LINKS: RwLock<Option<Arc<Links>>> = RwLock::new(None);

impl Links {
    /// Has all programs of this process cross to the processes of a world, until the value is dropped. While a call
    /// waits for another process, it asks `give_up` from time to time, and fails with what that says.
    pub fn connect(world: World, give_up: GiveUp) -> Arc<Links> {
        let (sent, threads, buffers) = (AtomicU64::new(0), Mutex::default(), Arc::default());
        let links = Arc::new(Links { world, give_up, sent, threads, buffers });
        *LINKS.write().unwrap_or_else(PoisonError::into_inner) = Some(links.clone());
        links
    }

    /// Ends that: no program that crosses runs any more. MPI is finalized with the last handle.
    pub fn disconnect() {
        *LINKS.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The processes.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Bytes that collectives of this process have sent to others so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Where a call of MPI fails, another process may be gone, which MPI does not name: whoever watches knows it when
    /// its lease has ended.
    fn explained(&self, error: MpiError) -> MpiError {
        let MpiError::Call { call, reason } = &error else { return error };
        let start = Instant::now();
        while start.elapsed() < EXPLAINED_WITHIN {
            if let Some(known) = (self.give_up)(Duration::ZERO) {
                return MpiError::GivenUp { reason: format!("{known} ({call} of MPI: {reason})") };
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        error
    }

    /// Has a device's thread do a call.
    fn hand_on(self: Arc<Self>, call: ForeignCall, crossing: crossing::Crossing, device: usize) {
        let place = device % crossing.devices().max(1);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.len() <= place {
            let (sender, jobs) = channel::<Job>();
            let work = move || {
                jobs.into_iter().for_each(|(call, crossing, device, links)| work(call, &crossing, device, links))
            };
            let thread = std::thread::Builder::new().name(format!("crossing-{}", threads.len()));
            if let Err(error) = thread.spawn(work) {
                let message = format!("no thread for collectives between processes: {error}");
                return call.finish(Err(CallFailure { code: ErrorCode::ResourceExhausted, message }));
            }
            threads.push(sender);
        }
        let thread = threads[place].clone();
        drop(threads);
        if let Err(unsent) = thread.send((call, crossing, device, self)) {
            let message = "the thread of a device for collectives between processes has ended".to_owned();
            unsent.0.0.finish(Err(CallFailure { code: ErrorCode::Internal, message }));
        }
    }
}

impl std::fmt::Debug for Links {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Links").field("world", &self.world).finish_non_exhaustive()
    }
}

/// A group of devices, as one of them sees it.
struct Group<'a> {
    links: &'a Links,
    members: Vec<usize>,
    rank: usize,
    /// Devices of each process.
    devices: usize,
}

impl Group<'_> {
    /// The tag of messages from one member to another.
    fn tag(&self, from: usize, to: usize) -> u16 {
        let place = |rank: usize| self.members[rank] % self.devices;
        // There are fewer devices in a process than make this more than MPI has.
        u16::try_from(place(from) * self.devices + place(to)).unwrap_or(u16::MAX)
    }

    /// Sends to members, and receives from members so many bytes; ranks, and what is sent or received.
    fn exchange(&self, outgoing: Vec<(usize, Bytes)>, incoming: Vec<(usize, usize)>) -> Result<Vec<Bytes>, MpiError> {
        let own = self.members[self.rank] / self.devices;
        let process = |rank: usize| self.members[rank] / self.devices;
        let crossing = outgoing.iter().filter(|(to, _)| process(*to) != own);
        let bytes: usize = crossing.map(|(_, bytes)| bytes.len()).sum();
        self.links.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        let buffers = &self.links.buffers;
        let outgoing = outgoing
            .into_iter()
            .map(|(to, bytes)| Outgoing { to: process(to), tag: self.tag(self.rank, to), bytes })
            .collect();
        let incoming = incoming
            .into_iter()
            .map(|(from, length)| Incoming {
                from: process(from),
                tag: self.tag(from, self.rank),
                bytes: buffers.take(length),
            })
            .collect();
        let received = self.links.world.exchange(outgoing, incoming, &*self.links.give_up);
        let received = received.map_err(|error| self.links.explained(error))?;
        Ok(received.into_iter().map(|bytes| buffers.lend(bytes)).collect())
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let (rank, size) = (self.rank, self.members.len());
        // Each begins with the one behind it, so that not all send to the same.
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// Every member's part to all, one after the other in `output`.
    fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        let input = self.links.buffers.copy(input);
        write_parts(&self.exchange_parts(|_| input.clone())?, output);
        Ok(())
    }

    /// Part `r` of the input to rank `r`.
    fn all_to_all(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        write_parts(&self.parts_for_this(&self.links.buffers.copy(input))?, output);
        Ok(())
    }

    /// Part `r` of the input to rank `r`; what all have for this one, by their ranks.
    fn parts_for_this(&self, input: &Bytes) -> Result<Vec<Bytes>, MpiError> {
        let length = input.len() / self.members.len();
        self.exchange_parts(|rank| input.slice(rank * length..(rank + 1) * length))
    }

    /// To each member the part for it, and from each one as long as that; by the ranks, with this one's own.
    fn exchange_parts(&self, part: impl Fn(usize) -> Bytes) -> Result<Vec<Bytes>, MpiError> {
        let mut parts: Vec<Bytes> = (0..self.members.len()).map(part).collect();
        let length = parts[self.rank].len();
        if length == 0 {
            // Nobody has anything to send.
            return Ok(parts);
        }
        let outgoing = self.others().map(|to| (to, std::mem::take(&mut parts[to]))).collect();
        let received = self.exchange(outgoing, self.others().map(|from| (from, length)).collect())?;
        self.others().zip(received).for_each(|(from, bytes)| parts[from] = bytes);
        Ok(parts)
    }

    /// The parts of all for this rank, combined in the order of the ranks: it is the same sum whoever makes it.
    fn reduce_scatter(
        &self,
        input: &Bytes,
        output: &mut [u8],
        combine: &dyn Fn(&mut [u8], &[u8]),
    ) -> Result<(), MpiError> {
        combine_parts(&self.parts_for_this(input)?, output, combine);
        Ok(())
    }

    /// Two members, or many that have little, send all that they have. Others send parts, which are combined and sent
    /// again: `2 (n - 1) / n` of the operand from each. `width` is the bytes of an element.
    fn all_reduce(
        &self,
        input: &[u8],
        output: &mut [u8],
        width: usize,
        combine: &dyn Fn(&mut [u8], &[u8]),
    ) -> Result<(), MpiError> {
        const LITTLE: usize = 4096;
        let (size, buffers) = (self.members.len(), &self.links.buffers);
        if size <= 2 || input.len() <= LITTLE {
            let input = buffers.copy(input);
            combine_parts(&self.exchange_parts(|_| input.clone())?, output, combine);
            return Ok(());
        }
        let part = input.len().div_ceil(size).next_multiple_of(width);
        let mut padded = buffers.take(part * size);
        let (own, rest) = padded.split_at_mut(input.len());
        own.copy_from_slice(input);
        rest.fill(0);
        let mut sum = buffers.take(part);
        self.reduce_scatter(&buffers.lend(padded), &mut sum, combine)?;
        let sum = buffers.lend(sum);
        write_parts(&self.exchange_parts(|_| sum.clone())?, output);
        Ok(())
    }

    fn permute(&self, pairs: &[(u32, u32)], input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        let own = u32::try_from(self.rank).unwrap_or(u32::MAX);
        let to = pairs.iter().find(|(source, _)| *source == own).map(|(_, target)| *target as usize);
        let from = pairs.iter().find(|(_, target)| *target == own).map(|(source, _)| *source as usize);
        let outgoing = to.map(|to| (to, self.links.buffers.copy(input))).into_iter().collect();
        let received = self.exchange(outgoing, from.map(|from| (from, output.len())).into_iter().collect())?;
        match received.first() {
            Some(bytes) => output.copy_from_slice(bytes),
            None => output.fill(0),
        }
        Ok(())
    }
}

/// Writes parts one after the other, as far as there is room for them.
fn write_parts(parts: &[Bytes], mut output: &mut [u8]) {
    for part in parts {
        let (place, rest) = output.split_at_mut(part.len().min(output.len()));
        place.copy_from_slice(&part[..place.len()]);
        output = rest;
    }
}

fn combine_parts(parts: &[Bytes], sum: &mut [u8], combine: &dyn Fn(&mut [u8], &[u8])) {
    if let Some((first, others)) = parts.split_first() {
        sum.copy_from_slice(first);
        others.iter().for_each(|part| combine(sum, part));
    }
}

/// The function that programs call.
#[derive(Debug)]
pub struct Crossing;

impl ForeignFunction for Crossing {
    const NAME: &'static str = crossing::TARGET;

    fn call(mut call: ForeignCall) {
        match Crossing::read(&mut call) {
            Ok((crossing, device, links)) => links.hand_on(call, crossing, device),
            Err(failure) => call.finish(Err(failure)),
        }
    }
}

impl Crossing {
    /// What a call is, the number of its device, and where it goes. The number is passed on.
    fn read(call: &mut ForeignCall) -> Result<(crossing::Crossing, usize, Arc<Links>), CallFailure> {
        let text = call.attribute(crossing::ATTRIBUTE);
        let text = text.ok_or_else(|| invalid("it does not say which collective it is".to_owned()))?;
        let crossing: crossing::Crossing = text.parse().map_err(|error| invalid(format!("{error}")))?;
        let links = LINKS.read().unwrap_or_else(PoisonError::into_inner).clone();
        let links = links.ok_or_else(|| {
            let processes = crossing.processes;
            let message = format!("the program is for {processes} processes, but this one has not joined others");
            CallFailure { code: ErrorCode::FailedPrecondition, message }
        })?;
        let size = links.world.size();
        if size != crossing.processes {
            return Err(invalid(format!("it is for {} processes, but there are {size}", crossing.processes)));
        }
        let (operands, mut results) = call.buffers();
        let is_paired = operands.len() == results.len();
        let (Some(device), Some(again), true) = (operands.last(), results.last_mut(), is_paired) else {
            let (operands, results) = (operands.len(), results.len());
            return Err(invalid(format!("it has {operands} operands, with that of its device, but {results} results")));
        };
        let number = <[u8; 4]>::try_from(device.bytes).ok().filter(|number| number.len() == again.bytes.len());
        let number = number.ok_or_else(|| invalid("the number of its device is no u32[]".to_owned()))?;
        again.bytes.copy_from_slice(&number);
        Ok((crossing, u32::from_ne_bytes(number) as usize, links))
    }
}

/// Does a call, in the thread of its device.
fn work(mut call: ForeignCall, crossing: &crossing::Crossing, device: usize, links: Arc<Links>) {
    let (members, rank) = crossing.group(device);
    let group = Group { links: &links, members, rank, devices: crossing.devices() };
    let (operands, results) = call.buffers();
    let count = operands.len().saturating_sub(1);
    let mut pairs = operands.into_iter().zip(results).take(count);
    let done = pairs.try_for_each(|(operand, result)| run(&group, &crossing.kind, operand, result));
    // Whoever learns that the call is over may leave, and MPI is finalized by the thread of the last handle.
    drop(links);
    call.finish(done);
}

fn invalid(message: String) -> CallFailure {
    CallFailure { code: ErrorCode::InvalidArgument, message: format!("a collective between processes: {message}") }
}

fn run(
    group: &Group<'_>,
    kind: &CrossingKind,
    operand: CallOperand<'_>,
    result: CallResult<'_>,
) -> Result<(), CallFailure> {
    let element_type = operand.element_type;
    let size = group.members.len();
    let (input, output) = (operand.bytes, result.bytes);
    let expected = match kind {
        CrossingKind::AllGather => input.len() * size,
        CrossingKind::ReduceScatter(_) => input.len() / size,
        CrossingKind::AllReduce(_) | CrossingKind::AllToAll | CrossingKind::CollectivePermute(_) => input.len(),
    };
    let is_cut = matches!(kind, CrossingKind::ReduceScatter(_) | CrossingKind::AllToAll);
    if output.len() != expected || (is_cut && !input.len().is_multiple_of(size)) {
        return Err(invalid(format!("{} bytes become {} in a group of {size}", input.len(), output.len())));
    }
    let combining = |how: Combine| {
        let (combining, width) =
            of_type(element_type).ok_or_else(|| invalid(format!("type {element_type} is not reduced")))?;
        Ok::<_, CallFailure>((move |sum: &mut [u8], next: &[u8]| combining(how, sum, next), width))
    };
    let done = match kind {
        CrossingKind::AllGather => group.all_gather(input, output),
        CrossingKind::AllToAll => group.all_to_all(input, output),
        CrossingKind::CollectivePermute(pairs) => group.permute(pairs, input, output),
        CrossingKind::AllReduce(how) => {
            let (combine, width) = combining(*how)?;
            group.all_reduce(input, output, width, &combine)
        }
        CrossingKind::ReduceScatter(how) => {
            group.reduce_scatter(&group.links.buffers.copy(input), output, &combining(*how)?.0)
        }
    };
    done.map_err(|error| CallFailure { code: ErrorCode::Unavailable, message: error.to_string() })
}
