//! The interface at which the libraries MPI and NCCL listen.
//!
//! Neither authenticates who connects. So they listen on loopback, which serves the processes of one host, unless the
//! user names an interface in whose network everybody is trusted.

use std::path::Path;

use crate::error::JoinError;
use crate::launch::own_variable;
use crate::mpi::set_variables;

/// The name of the loopback interface on Linux.
const LOOPBACK: &str = "lo";

/// The variable that each library reads, and the text that stands there in front of the interface's name.
const VARIABLES: [(&str, &str); 3] = [
    // libfabric's provider `tcp`, by which MPICH reaches other hosts.
    ("FI_TCP_IFACE", ""),
    // UCX, by which MPICH reaches them if it was built for it.
    ("UCX_NET_DEVICES", ""),
    // NCCL takes a name as a prefix unless it follows this sign.
    ("NCCL_SOCKET_IFNAME", "="),
];

/// Returns the variables to set, for the trusted interface or for loopback. Variables that the environment has are left
/// out.
///
/// # Errors
/// There is no such interface.
pub fn variables(
    trusted: Option<&str>,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<(&'static str, String)>, JoinError> {
    let name = trusted.unwrap_or(LOOPBACK);
    let interfaces = Path::new("/sys/class/net");
    if trusted.is_some() && interfaces.is_dir() && (name.contains('/') || !interfaces.join(name).exists()) {
        let listed = std::fs::read_dir(interfaces).into_iter().flatten().flatten();
        let mut there: Vec<String> = listed.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        there.sort();
        return Err(JoinError::Interface { name: name.to_owned(), there: there.join(", ") });
    }
    let absent = VARIABLES.into_iter().filter(|(variable, _)| environment(variable).is_none());
    Ok(absent.map(|(variable, before)| (variable, format!("{before}{name}"))).collect())
}

/// Makes MPI and NCCL listen at the trusted interface, or on loopback. The caller does so before any other thread of
/// this process runs.
pub(crate) fn bind_listeners(trusted: Option<&str>) -> Result<(), JoinError> {
    let variables = variables(trusted, &own_variable)?;
    set_variables(variables.into_iter().map(|(variable, value)| (variable, Some(value))));
    Ok(())
}

/// The least number of hosts on which MPICH's launcher has started `count` processes, if it states how many are on this
/// one.
pub(crate) fn hosts_of_launcher(count: usize, environment: &dyn Fn(&str) -> Option<String>) -> Option<usize> {
    let here: usize = environment("MPI_LOCALNRANKS")?.parse().ok()?;
    Some(count.div_ceil(here.max(1)))
}

/// Refuses processes of several hosts where no network is trusted.
///
/// # Errors
/// The processes are on more than one host.
pub fn check_hosts(hosts: usize, trusted: Option<&str>) -> Result<(), JoinError> {
    if hosts > 1 && trusted.is_none() { Err(JoinError::Untrusted { hosts }) } else { Ok(()) }
}

/// A text that tells this host from others.
pub(crate) fn this_host() -> String {
    ["/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname"]
        .map(|file| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned())
        .join(" ")
}
