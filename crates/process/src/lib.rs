//! Child processes that end with the process that started them, however that ends.
//!
//! Linux sends such a child a signal when the *thread* that started it ends, not the process
//! (`PR_SET_PDEATHSIG`, prctl(2)). So [`spawn`] starts children from a thread that stays until the process ends.
//! Between the start of a child and its request for that signal, the parent may be gone already: then no signal comes.
//! So a child that has asked looks whose child it is.
//!
//! Other systems have no such signal: there, children are started as usual.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

/// A program to start, and where to say what became of it.
type Start = (Command, Sender<io::Result<Child>>);

/// Starts a program that ends when this process does, whatever becomes of the thread that calls this. It is killed
/// without notice.
///
/// # Errors
/// The program cannot be started; no thread can be started that does it.
pub fn spawn(mut command: Command) -> io::Result<Child> {
    static STARTER: Mutex<Option<Sender<Start>>> = Mutex::new(None);
    end_with_parent(&mut command, std::process::id());
    let (answer, started) = channel();
    {
        let mut starter = STARTER.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *starter {
            Some(sender) => sender,
            none => none.insert(start_thread()?),
        };
        // The thread has its end of the channel until the process ends.
        sender.send((command, answer)).map_err(io::Error::other)?;
    }
    started.recv().map_err(io::Error::other)?
}

fn start_thread() -> io::Result<Sender<Start>> {
    let (sender, starts) = channel::<Start>();
    let start_each = move || {
        for (mut command, answer) in starts {
            // The caller waits for the answer.
            let _ = answer.send(command.spawn());
        }
    };
    std::thread::Builder::new().name("starter".to_owned()).spawn(start_each)?;
    Ok(sender)
}

/// Has a program end when the thread that starts it does. It is not started if its parent is another process than that
/// one by then.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
#[doc(hidden)]
pub fn end_with_parent(command: &mut Command, parent: u32) {
    use std::os::unix::process::CommandExt;
    // SAFETY: these are system calls, which allocate nothing.
    unsafe { command.pre_exec(move || end_with(parent)) };
}

/// Other systems have nothing like that.
#[cfg(not(target_os = "linux"))]
fn end_with_parent(_: &mut Command, _: u32) {}

/// Has this process end when the thread of its parent ends that started it.
///
/// # Errors
/// The parent is not that process, or no longer; the system refuses.
#[cfg(target_os = "linux")]
pub fn end_with(parent: u32) -> io::Result<()> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // In this order: a parent that ends behind the request sends the signal.
    let found = getppid().map(Pid::as_raw_nonzero).map(|found| found.get().cast_unsigned());
    // "No such process". It is made without memory, which a child between fork and exec must not ask for.
    if found == Some(parent) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
}
