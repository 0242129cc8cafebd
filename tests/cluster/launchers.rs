//! Tests with recorded environments of launchers.

use meshloom_cluster::internals::{check_hosts, variables};
use meshloom_cluster::store::{Store, StoreOptions, Tls, User};
use meshloom_cluster::{LaunchError, Launched, Launcher};

use super::etcd::shared;

type Recorded = &'static [(&'static str, &'static str)];

fn value(environment: &[(&str, &str)], variable: &str) -> Option<String> {
    let found = environment.iter().find(|(name, value)| *name == variable && !value.is_empty());
    found.map(|(_, value)| (*value).to_owned())
}

fn detect(environment: Recorded) -> Result<Launched, LaunchError> {
    Launched::detect(&|variable| value(environment, variable))
}

fn launched(launcher: Launcher, process: usize, count: usize) -> Launched {
    Launched { launcher, process, count, on_host: None, job: None, first_host: None }
}

/// `mpiexec -n 4` of Open MPI 5.0.
const OPEN_MPI: Recorded = &[
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("OMPI_COMM_WORLD_NODE_RANK", "1"),
    ("PMIX_NAMESPACE", "prterun-host-2211@1"),
    ("PMIX_RANK", "3"),
];

/// `mpiexec -n 2` of MPICH 5.0 (Hydra).
const MPICH: Recorded = &[
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "2"),
    ("PMI_FD", "9"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "2"),
    ("HYDI_CONTROL_FD", "6"),
];

/// `srun -N 2 -n 4`.
const SLURM: Recorded = &[
    ("SLURM_JOB_ID", "1234567"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_PROCID", "2"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_NODELIST", "gpu-[007-008]"),
];

const GKE: Recorded = &[
    ("TPU_WORKER_ID", "1"),
    ("TPU_WORKER_HOSTNAMES", "job-0-0.sub,job-0-1.sub"),
    ("MEGASCALE_NUM_SLICES", "2"),
    ("MEGASCALE_SLICE_ID", "1"),
    ("MEGASCALE_COORDINATOR_ADDRESS", "job-0-0.sub:8080"),
];

const KUBERNETES: Recorded = &[
    ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
    ("JOB_COMPLETION_INDEX", "5"),
    ("HOSTNAME", "run-5-x7k2p"),
    ("MESHLOOM_PROCESS_COUNT", "8"),
];

#[test]
fn each_launcher_is_known() {
    let job = Some("prterun-host-2211@1".to_owned());
    let expected = Launched { on_host: Some(1), job, ..launched(Launcher::OpenMpi, 3, 4) };
    assert_eq!(detect(OPEN_MPI), Ok(expected));
    assert_eq!(detect(MPICH), Ok(Launched { on_host: Some(1), ..launched(Launcher::Mpich, 1, 2) }));
    let (job, first_host) = (Some("1234567.0".to_owned()), Some("gpu-007".to_owned()));
    assert_eq!(detect(SLURM), Ok(Launched { on_host: Some(0), job, first_host, ..launched(Launcher::Slurm, 2, 4) }));
    let first_host = Some("job-0-0.sub".to_owned());
    assert_eq!(detect(GKE), Ok(Launched { on_host: Some(0), first_host, ..launched(Launcher::GkeTpu, 3, 4) }));
    assert_eq!(detect(KUBERNETES), Ok(Launched { on_host: Some(0), ..launched(Launcher::Kubernetes, 5, 8) }));
    assert_eq!(detect(&[("HOME", "/root")]), Err(LaunchError::None));
}

/// `mpiexec` in a Slurm job: the batch step has one task, and MPI as many processes as it says.
#[test]
fn the_innermost_launcher_counts() {
    let environment: Recorded = &[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_PROCID", "0"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
    ];
    assert_eq!(detect(environment), Ok(launched(Launcher::OpenMpi, 1, 2)));
}

#[test]
fn lists_of_hosts() {
    let cases: [(Recorded, &str); 5] = [
        (&[("SLURM_STEP_NODELIST", "alone")], "alone"),
        (&[("SLURM_STEP_NODELIST", "a,b")], "a"),
        (&[("SLURM_STEP_NODELIST", "node[01-04,07],other3")], "node01"),
        (&[("SLURM_STEP_NODELIST", "r[1-2]c[03,04]")], "r1c03"),
        (&[("SLURM_STEP_NODELIST", "n[9]-ib,m1")], "n9-ib"),
    ];
    for (list, expected) in cases {
        let base = [("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0")];
        let all: Vec<(&str, &str)> = base.iter().chain(list).copied().collect();
        let found = Launched::detect(&|variable| value(&all, variable)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.first_host.as_deref(), Some(expected));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let refused = |environment: Recorded| detect(environment).expect_err("it is refused").to_string();
    let missing = refused(&[("OMPI_COMM_WORLD_SIZE", "2")]);
    assert!(missing.contains("OMPI_COMM_WORLD_RANK is not set"), "{missing}");
    let text = refused(&[("PMI_RANK", "one"), ("PMI_SIZE", "2")]);
    assert!(text.contains("PMI_RANK is \"one\": a whole number is expected"), "{text}");
    let too_large = refused(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]);
    assert!(too_large.contains("PMI_RANK is \"2\": a number below that of processes is expected, 2"), "{too_large}");
    let unknown = refused(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("JOB_COMPLETION_INDEX", "0")]);
    assert!(unknown.contains("MESHLOOM_PROCESS_COUNT is not set"), "{unknown}");
    let hosts: Recorded =
        &[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "2"), ("SLURM_PROCID", "0"), ("SLURM_STEP_NODELIST", "n[")];
    assert!(refused(hosts).contains("a list of hosts"), "{}", refused(hosts));
}

/// MPI and NCCL listen on loopback, or at the interface that is named; what the user has set stays.
#[test]
fn others_listen_where_they_are_told() {
    let nothing: Recorded = &[];
    let set = |trusted, environment: Recorded| {
        variables(trusted, &|variable| value(environment, variable)).map_err(|error| error.to_string())
    };
    let all = |name: &str| {
        let variables = [("FI_TCP_IFACE", ""), ("UCX_NET_DEVICES", ""), ("NCCL_SOCKET_IFNAME", "=")];
        variables.map(|(variable, before)| (variable, format!("{before}{name}"))).to_vec()
    };
    assert_eq!(set(None, nothing), Ok(all("lo")));
    assert_eq!(set(Some("lo"), nothing), Ok(all("lo")));
    let own: Recorded = &[("UCX_NET_DEVICES", "mlx5_0:1")];
    assert_eq!(set(Some("lo"), own), Ok([&all("lo")[..1], &all("lo")[2..]].concat()));
    let absent = set(Some("absent0"), nothing).expect_err("it is refused");
    assert!(absent.starts_with("--trusted-network absent0: this host has no such network interface"), "{absent}");
    assert!(check_hosts(1, None).is_ok() && check_hosts(2, Some("lo")).is_ok());
    let refused = check_hosts(2, None).expect_err("it is refused").to_string();
    assert!(refused.contains("give --trusted-network INTERFACE"), "{refused}");
    let etcd = shared();
    let on = |process, host: &str| {
        let options = etcd.options("others_listen_where_they_are_told", process, 3);
        Store::connect(StoreOptions { host: host.to_owned(), ..options }).unwrap_or_else(|error| panic!("{error}"))
    };
    let stores = [on(0, "a"), on(1, "a"), on(2, "b")];
    assert_eq!(stores[0].hosts(), Ok(2));
}

/// The text of a user and that of certificates leave out the secret.
#[test]
fn secrets_are_not_printed() {
    let user = User { name: "me".to_owned(), password: "secret".to_owned() };
    let tls = Tls { authority: None, identity: Some((b"certificate".to_vec(), b"secret".to_vec())) };
    let options = StoreOptions { user: Some(user), tls: Some(tls), ..StoreOptions::new("https://a:1", "job", (0, 1)) };
    let printed = format!("{options:?}");
    let bytes = format!("{:?}", b"secret");
    assert!(printed.contains("me") && !printed.contains("secret") && !printed.contains(&bytes), "{printed}");
}
