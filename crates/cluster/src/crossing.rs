//! Collectives whose groups cross processes. CPU plugins have none, so each is a custom call that uses MPI.
//!
//! The call itself says what it does ([`crossing`]), so nothing is registered for a program. Calls of one device must
//! not overtake each other, or two processes could wait for one another; the emitter chains them. Devices of a process
//! do not wait for each other: the tag of a message names the two devices, of the sender and the receiver, that it
//! travels between.
//!
//! A call runs here, in a thread of its device. Meanwhile the plugin's threads compute, and wait for each other in
//! collectives within the process. A call that held one of these threads could keep such a collective from beginning,
//! while other devices wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshloom_hlo::ReduceKind;
use meshloom_hlo::crossing::{self, CrossingKind};
use meshloom_pjrt::{CallFailure, CallOperand, CallResult, ErrorCode, ForeignCall, ForeignFunction};

use crate::combine::of_type;
use crate::mpi::{GiveUp, Incoming, MpiError, Outgoing, World};

/// A call, its collective, the number of its device, and the processes that it reaches.
type Job = (ForeignCall, crossing::Crossing, usize, Arc<Links>);

/// The longest time between a failure in MPI and the news that a process was lost.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(15);

/// The processes that collectives reach.
pub struct Links {
    world: World,
    give_up: Box<GiveUp<'static>>,
    sent: AtomicU64,
    /// The thread of each device.
    threads: Mutex<Vec<Sender<Job>>>,
    buffers: Arc<Buffers>,
}

/// Buffers that are kept between calls. MPI owns the bytes that it sends and receives until the exchange is over, while
/// the memory of an operand or a result goes with its call.
#[derive(Debug, Default)]
struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A buffer that returns to the kept buffers when its last user drops it.
struct Lent {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// Returns a buffer of this length, with arbitrary contents.
    fn take(&self, length: usize) -> Vec<u8> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Take the smallest buffer that is large enough. If there is none, drop the smallest to make room for a new
        // one. So no more buffers are kept than were in use at once, in the sizes that calls ask for.
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

    /// Lends a buffer: it is kept again when the last part of it is dropped.
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
    /// Connects all programs of this process to the processes of a world, until the value is dropped. While a call
    /// waits for another process, it asks `give_up` from time to time, and fails with the reason that it returns.
    pub fn connect(world: World, give_up: Box<GiveUp<'static>>) -> Arc<Links> {
        let (sent, threads, buffers) = (AtomicU64::new(0), Mutex::default(), Arc::default());
        let links = Arc::new(Links { world, give_up, sent, threads, buffers });
        *LINKS.write().unwrap_or_else(PoisonError::into_inner) = Some(links.clone());
        links
    }

    /// Disconnects. No program with collectives across processes may run any more. MPI is finalized with the last
    /// handle.
    pub fn disconnect() {
        *LINKS.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The processes.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The number of bytes that collectives of this process have sent to other processes so far.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Explains a failed call of MPI. The cause may be the loss of another process, which MPI does not name; `give_up`
    /// knows it once the lease of that process has ended.
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

    /// Hands a call to the thread of its device.
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
    /// The number of devices of each process.
    devices: usize,
}

impl Group<'_> {
    /// The tag of messages from one member to another.
    fn tag(&self, from: usize, to: usize) -> u16 {
        let place = |rank: usize| self.members[rank] % self.devices;
        // MPI allows more tags than there are pairs of devices.
        u16::try_from(place(from) * self.devices + place(to)).unwrap_or(u16::MAX)
    }

    /// Sends bytes to members and receives bytes from members. Each pair has a rank, and the bytes to send or the
    /// number of bytes to receive.
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
        // Each member begins with the next rank, so that not all send to the same one.
        (1..size).map(move |distance| (rank + distance) % size)
    }

    /// Sends every member's part to all; `output` has the parts one after the other.
    fn all_gather(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        let input = self.links.buffers.copy(input);
        write_parts(&self.exchange_parts(|_| input.clone())?, output);
        Ok(())
    }

    /// Sends part `r` of the input to rank `r`.
    fn all_to_all(&self, input: &[u8], output: &mut [u8]) -> Result<(), MpiError> {
        write_parts(&self.parts_for_this(&self.links.buffers.copy(input))?, output);
        Ok(())
    }

    /// Sends part `r` of the input to rank `r`. Returns the parts of all members for this one, by rank.
    fn parts_for_this(&self, input: &Bytes) -> Result<Vec<Bytes>, MpiError> {
        let length = input.len() / self.members.len();
        self.exchange_parts(|rank| input.slice(rank * length..(rank + 1) * length))
    }

    /// Sends each member the part for it, and receives a part of the same length from each. Returns them by rank, with
    /// this member's own.
    fn exchange_parts(&self, part: impl Fn(usize) -> Bytes) -> Result<Vec<Bytes>, MpiError> {
        let mut parts: Vec<Bytes> = (0..self.members.len()).map(part).collect();
        let length = parts[self.rank].len();
        if length == 0 {
            // All parts are empty.
            return Ok(parts);
        }
        let outgoing = self.others().map(|to| (to, std::mem::take(&mut parts[to]))).collect();
        let received = self.exchange(outgoing, self.others().map(|from| (from, length)).collect())?;
        self.others().zip(received).for_each(|(from, bytes)| parts[from] = bytes);
        Ok(parts)
    }

    /// Combines the parts of all members for this rank. They are combined in the order of the ranks, so the sum is the
    /// same on every member.
    fn reduce_scatter(
        &self,
        input: &Bytes,
        output: &mut [u8],
        combine: &dyn Fn(&mut [u8], &[u8]),
    ) -> Result<(), MpiError> {
        combine_parts(&self.parts_for_this(input)?, output, combine);
        Ok(())
    }

    /// Two members, or many members with little data, send their whole operands. Otherwise members send parts, combine
    /// them and send the results: `2 (n - 1) / n` of the operand from each. `width` is the number of bytes of an
    /// element.
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

/// Writes parts one after the other, as far as they fit.
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
    /// Reads a call: its collective, the number of its device, and the processes that it reaches. The device number is
    /// passed on.
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

/// Runs a call in the thread of its device.
fn work(mut call: ForeignCall, crossing: &crossing::Crossing, device: usize, links: Arc<Links>) {
    let (members, rank) = crossing.group(device);
    let group = Group { links: &links, members, rank, devices: crossing.devices() };
    let (operands, results) = call.buffers();
    let count = operands.len().saturating_sub(1);
    let mut pairs = operands.into_iter().zip(results).take(count);
    let done = pairs.try_for_each(|(operand, result)| run(&group, &crossing.kind, operand, result));
    // Once the call is finished its process may leave. The links go first, so that this thread does not finalize MPI.
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
    let combining = |how: ReduceKind| {
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
