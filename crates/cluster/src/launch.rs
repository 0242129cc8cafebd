//! The number of this process, from the environment variables that its launcher sets.
//!
//! | launcher | number, count | on its host | where the first process is |
//! |---|---|---|---|
//! | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` | not said |
//! | MPICH | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID` | not said |
//! | Slurm | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS` | `SLURM_LOCALID` | first of `SLURM_STEP_NODELIST` |
//! | GKE, TPU | `TPU_WORKER_ID`, the names in `TPU_WORKER_HOSTNAMES`; slices by `MEGASCALE_SLICE_ID`, `MEGASCALE_NUM_SLICES` | one for each host | the first name, or `MEGASCALE_COORDINATOR_ADDRESS` |
//! | Kubernetes, indexed job | `JOB_COMPLETION_INDEX`, `MESHLOOM_PROCESS_COUNT` | one for each pod | `MESHLOOM_STORE` |
//!
//! The launchers are tried in this order, the innermost first: `mpiexec` in a Slurm job says more than the job. JAX's
//! `jax/_src/clusters` reads the same variables.

meshloom_hlo::words! {
    /// The program that has started the processes.
    pub enum Launcher {
        /// `mpiexec` of Open MPI.
        OpenMpi = "Open MPI",
        /// `mpiexec` of MPICH, and other launchers that speak its PMI.
        Mpich = "MPICH",
        /// `srun`.
        Slurm = "Slurm",
        /// TPU pods of Google's Kubernetes engine.
        GkeTpu = "GKE with TPUs",
        /// A Kubernetes job with `completionMode: Indexed`.
        Kubernetes = "a Kubernetes indexed job",
    }
}

/// The facts that a launcher states about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The launcher that has started it.
    pub launcher: Launcher,
    /// Its number.
    pub process: usize,
    /// The number of processes.
    pub count: usize,
    /// Its number among those on its host, if the launcher states it.
    pub on_host: Option<usize>,
    /// A text that all processes of the start share with no others, if the launcher states one.
    pub job: Option<String>,
    /// The host of the first process, if the launcher states it.
    pub first_host: Option<String>,
}

/// The reason why an environment does not tell the number of the process.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum LaunchError {
    /// No known launcher has started this process.
    #[error(
        "no launcher has started this process: neither Open MPI, MPICH, Slurm, GKE with TPUs nor a Kubernetes indexed \
         job left its variables; give --process-id, --process-count and --store"
    )]
    None,
    /// A variable is missing.
    #[error("{launcher} has started this process, but {variable} is not set: {instead}")]
    Missing { launcher: Launcher, variable: &'static str, instead: &'static str },
    /// A variable has an invalid value.
    #[error("{launcher} has started this process, but {variable} is {value:?}: {expected}")]
    Invalid { launcher: Launcher, variable: &'static str, value: String, expected: String },
}

meshloom_hlo::debug_is_message!(LaunchError);

/// The value of a variable of this process; `None` if it is not set, or empty.
pub fn own_variable(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|value| !value.is_empty())
}

impl Launched {
    /// Reads the facts from an environment, which gives the value of a variable that is set.
    ///
    /// # Errors
    /// No launcher has started this process, or its launcher's variables are incomplete or invalid.
    pub fn detect(environment: &dyn Fn(&str) -> Option<String>) -> Result<Launched, LaunchError> {
        let is_set = |variable: &str| environment(variable).is_some();
        if is_set("OMPI_COMM_WORLD_SIZE") {
            let read = Reader { environment, launcher: Launcher::OpenMpi };
            let job = environment("PMIX_NAMESPACE").or_else(|| environment("OMPI_MCA_ess_base_jobid"));
            return read.ranked(["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], "OMPI_COMM_WORLD_LOCAL_RANK", job);
        }
        if is_set("PMI_RANK") {
            let read = Reader { environment, launcher: Launcher::Mpich };
            let slurm = environment("SLURM_JOB_ID").zip(environment("SLURM_STEP_ID"));
            let job = environment("HYDI_CONTROL_FD").map_or(slurm, |_| None).map(|(job, step)| format!("{job}.{step}"));
            let local = if is_set("MPI_LOCALRANKID") { "MPI_LOCALRANKID" } else { "SLURM_LOCALID" };
            return read.ranked(["PMI_RANK", "PMI_SIZE"], local, job);
        }
        if is_set("SLURM_PROCID") {
            return Reader { environment, launcher: Launcher::Slurm }.slurm();
        }
        if is_set("TPU_WORKER_ID") && (is_set("TPU_WORKER_HOSTNAMES") || is_set("TPU_PROCESS_ADDRESSES")) {
            return Reader { environment, launcher: Launcher::GkeTpu }.gke();
        }
        if is_set("KUBERNETES_SERVICE_HOST") && is_set("JOB_COMPLETION_INDEX") {
            return Reader { environment, launcher: Launcher::Kubernetes }.kubernetes();
        }
        Err(LaunchError::None)
    }
}

struct Reader<'e> {
    environment: &'e dyn Fn(&str) -> Option<String>,
    launcher: Launcher,
}

impl Reader<'_> {
    fn text(&self, variable: &'static str, instead: &'static str) -> Result<String, LaunchError> {
        let missing = LaunchError::Missing { launcher: self.launcher, variable, instead };
        (self.environment)(variable).ok_or(missing)
    }

    fn number(&self, variable: &'static str) -> Result<usize, LaunchError> {
        let value = self.text(variable, "start it as the launcher does, or give --process-id and --process-count")?;
        let invalid = |value: String| self.invalid(variable, value, "a whole number is expected".to_owned());
        value.parse().map_err(|_| invalid(value))
    }

    fn invalid(&self, variable: &'static str, value: String, expected: String) -> LaunchError {
        LaunchError::Invalid { launcher: self.launcher, variable, value, expected }
    }

    /// Returns a number and a count, with the other facts that the launcher states.
    fn launched(&self, variable: &'static str, process: usize, count: usize) -> Result<Launched, LaunchError> {
        if process >= count {
            let expected = format!("a number below that of processes is expected, {count}");
            return Err(self.invalid(variable, process.to_string(), expected));
        }
        Ok(Launched { launcher: self.launcher, process, count, on_host: None, job: None, first_host: None })
    }

    fn ranked(
        &self,
        [rank, size]: [&'static str; 2],
        local: &str,
        job: Option<String>,
    ) -> Result<Launched, LaunchError> {
        let launched = self.launched(rank, self.number(rank)?, self.number(size)?)?;
        let on_host = (self.environment)(local).and_then(|value| value.parse().ok());
        Ok(Launched { on_host, job, ..launched })
    }

    fn slurm(&self) -> Result<Launched, LaunchError> {
        let size = match (self.environment)("SLURM_STEP_NUM_TASKS") {
            Some(_) => "SLURM_STEP_NUM_TASKS",
            None => "SLURM_NTASKS",
        };
        let launched = self.launched("SLURM_PROCID", self.number("SLURM_PROCID")?, self.number(size)?)?;
        let job = self.text("SLURM_JOB_ID", "start it by srun")?;
        let job = match (self.environment)("SLURM_STEP_ID") {
            Some(step) => format!("{job}.{step}"),
            None => job,
        };
        let hosts = ["SLURM_STEP_NODELIST", "SLURM_NODELIST"].into_iter();
        let first_host = match hosts.filter_map(|name| Some((name, (self.environment)(name)?))).next() {
            Some((name, hosts)) => Some(first_of(&hosts).ok_or_else(|| {
                self.invalid(name, hosts, "a list of hosts such as node[01-04],other is expected".to_owned())
            })?),
            None => None,
        };
        let on_host = (self.environment)("SLURM_LOCALID").and_then(|value| value.parse().ok());
        Ok(Launched { on_host, job: Some(job), first_host, ..launched })
    }

    fn gke(&self) -> Result<Launched, LaunchError> {
        let names = match (self.environment)("TPU_WORKER_HOSTNAMES") {
            Some(names) => names,
            None => self.text("TPU_PROCESS_ADDRESSES", "run it in a pod that asks for google.com/tpu")?,
        };
        let hosts: Vec<&str> = names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let of_slice = self.launched("TPU_WORKER_ID", self.number("TPU_WORKER_ID")?, hosts.len())?;
        let without_port = |host: &str| host.rsplit_once(':').map_or(host, |(host, _)| host).to_owned();
        let Some(slices) = (self.environment)("MEGASCALE_NUM_SLICES") else {
            return Ok(Launched {
                on_host: Some(0),
                first_host: hosts.first().map(|host| without_port(host)),
                ..of_slice
            });
        };
        let (slice, slices) = match slices.parse::<usize>() {
            Ok(slices) => (self.number("MEGASCALE_SLICE_ID")?, slices),
            Err(_) => {
                return Err(self.invalid("MEGASCALE_NUM_SLICES", slices, "a whole number is expected".to_owned()));
            }
        };
        self.launched("MEGASCALE_SLICE_ID", slice, slices)?;
        let coordinator = self.text("MEGASCALE_COORDINATOR_ADDRESS", "all slices have it alike")?;
        let (process, count) = (slice * hosts.len() + of_slice.process, slices * hosts.len());
        Ok(Launched { process, count, on_host: Some(0), first_host: Some(without_port(&coordinator)), ..of_slice })
    }

    fn kubernetes(&self) -> Result<Launched, LaunchError> {
        const COUNT: &str = "MESHLOOM_PROCESS_COUNT";
        self.text(COUNT, "Kubernetes does not tell pods how many completions a job has; set it in the pod's env")?;
        let process = self.number("JOB_COMPLETION_INDEX")?;
        let launched = self.launched("JOB_COMPLETION_INDEX", process, self.number(COUNT)?)?;
        Ok(Launched { on_host: Some(0), job: (self.environment)("MESHLOOM_JOB"), ..launched })
    }
}

/// The first host of a list as Slurm writes it: `node01` for `node[01-04,07],other3`.
fn first_of(hosts: &str) -> Option<String> {
    let end = hosts.find([',', '[']).unwrap_or(hosts.len());
    let name = hosts.get(..end)?;
    let Some(rest) = hosts.get(end..)?.strip_prefix('[') else {
        return (!name.is_empty()).then(|| name.to_owned());
    };
    let (numbers, behind) = rest.split_once(']')?;
    let number = numbers.split([',', '-']).next().filter(|number| !number.is_empty())?;
    // The text behind the brackets belongs to the name, up to the next host. It may have brackets of its own.
    let tail = match behind.find(',') {
        Some(comma) if !behind.get(..comma)?.contains('[') => behind.get(..comma)?.to_owned(),
        _ if behind.is_empty() => String::new(),
        _ => first_of(behind)?,
    };
    Some(format!("{name}{number}{tail}"))
}
