//! The part that `meshloom-processes` adds to `meshloom`: a run as one of several processes, or of several separate
//! replicas.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use meshloom_cli::{Ended, Membership, ProcessFlags, Several, Start};
use meshloom_hlo::PlatformKind;
use meshloom_pjrt::{Client, ProcessPlace};
use meshloom_train::config::RunConfig;
use meshloom_train::peers::{Peers, ReplicaLink};

use crate::launch::{Launched, own_variable};
use crate::store::{StoreOptions, Tls, User};
use crate::{Crossing, JoinOptions, Member, ReplicaOptions, Replicas, StoreForClients, certificates, store_address};

/// The functions that join this process to the others, and make certificates in this process.
pub const HERE: Start = Start { join: here, certify: |flags, _| Ok(certificates::make(flags)?) };

fn here(flags: &ProcessFlags, _: &[OsString]) -> Result<Box<dyn Several>> {
    let flags = flags.clone();
    Ok(Box::new(Here { place: place(&flags)?, flags }))
}

struct Here {
    flags: ProcessFlags,
    place: Option<(usize, usize)>,
}

impl Several for Here {
    fn place(&self) -> Option<(usize, usize)> {
        self.place
    }

    fn train(&self, config: &RunConfig, train: &dyn Fn(Membership) -> Result<()>) -> Result<()> {
        let member = self.join(config.platform_kind()?)?;
        let trained = self.train_with(config, member.as_ref(), train);
        // If the run is ended before its last step, all processes end it alike.
        if trained.as_ref().is_err_and(|error| error.is::<Ended>()) {
            member.map_or(Ok(()), |member| member.leave())?;
            return trained;
        }
        let (Err(error), Some(member)) = (&trained, &member) else { return trained };
        let error = error.to_string();
        member.fail(&error);
        match member.loss().filter(|loss| !error.contains(loss)) {
            Some(loss) => bail!("{error}; {loss}"),
            None => trained,
        }
    }
}

impl Here {
    /// Trains together with the processes that have joined, if there are others.
    fn train_with(
        &self,
        config: &RunConfig,
        member: Option<&Arc<Member>>,
        train: &dyn Fn(Membership) -> Result<()>,
    ) -> Result<()> {
        let replicas = self.replicas(config, member)?;
        let trained = train(Membership {
            process: member.map(|member| (member.clone() as Arc<dyn Peers>, place_of_client(member))),
            link: replicas.clone().map(|replicas| replicas as Arc<dyn ReplicaLink>),
            prepare: register,
        });
        if let (Some(replicas), Err(error)) = (&replicas, &trained)
            && !error.is::<Ended>()
        {
            replicas.fail();
        }
        trained?;
        // Other processes read from the first of the replica until all have come here.
        Ok(member.map_or(Ok(()), |member| member.leave())?)
    }

    /// Joins the other processes, if there are any.
    fn join(&self, on: PlatformKind) -> Result<Option<Arc<Member>>> {
        let flags = &self.flags;
        if !flags.is_one_of_several() {
            return Ok(None);
        }
        // The processes of a replica meet apart from those of other replicas.
        let of_replica = flags.replica.map(|number| format!("{}/replica-{number}", self.job_or_default()));
        let options = JoinOptions {
            place: flags.process_id.zip(flags.process_count),
            store: flags.store.clone(),
            tls: self.tls()?,
            user: self.user()?,
            insecure: flags.insecure,
            trusted_network: flags.trusted_network.clone(),
            job: of_replica.or_else(|| flags.job.clone()),
            attempt: flags.attempt,
            limit: Duration::from_secs(flags.join_limit),
            lease: Duration::from_secs(flags.lease),
            mpi: on == PlatformKind::Cpu,
            starts_store: flags.replica.is_none(),
            ..JoinOptions::default()
        };
        Ok(Some(Arc::new(Member::join(&options)?)))
    }

    /// Connects to the other replicas, if there are any.
    fn replicas(&self, config: &RunConfig, member: Option<&Arc<Member>>) -> Result<Option<Arc<Replicas>>> {
        let flags = &self.flags;
        let (Some(number), Some(diloco)) = (flags.replica, &config.diloco) else { return Ok(None) };
        let Some(address) = store_address(flags.store.as_ref()) else {
            bail!(
                "--replica needs a store in which replicas meet: give --store http://HOST:PORT of an etcd, or set MESHLOOM_STORE"
            );
        };
        let tls = self.tls()?;
        let store = StoreOptions {
            lease: Duration::from_secs(flags.lease),
            limit: Duration::from_secs(flags.join_limit.min(60)),
            tls: tls.clone(),
            user: self.user()?,
            insecure: flags.insecure,
            ..StoreOptions::new(address, self.job_or_default(), (number, diloco.replicas))
        };
        let options = ReplicaOptions {
            number,
            count: diloco.replicas,
            least: diloco.apart.as_ref().map_or(1, |apart| apart.min_replicas),
            store,
            listen: flags.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0))),
            advertise: flags.advertise.clone(),
            tls,
            insecure: flags.insecure,
            // The state is the parameters and velocities, however they are cut, with the files that describe them.
            state_bytes: 2 * config.outer_byte_count()? + (64 << 20),
            limit: Duration::from_secs(flags.join_limit),
            patience: JoinOptions::default().patience,
        };
        Ok(Some(Arc::new(Replicas::connect(options, member)?)))
    }

    fn job_or_default(&self) -> String {
        self.flags.job.clone().unwrap_or_else(|| "meshloom".to_owned())
    }

    fn tls(&self) -> Result<Option<Tls>> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let identity = match (&self.flags.store_cert, &self.flags.store_key) {
            (Some(certificate), Some(key)) => {
                warn_if_others_read(key);
                Some((read(certificate)?, read(key)?))
            }
            _ => None,
        };
        let authority = self.flags.store_ca.as_ref().map(read).transpose()?;
        Ok((authority.is_some() || identity.is_some()).then_some(Tls { authority, identity }))
    }

    fn user(&self) -> Result<Option<User>> {
        let Some(name) = self.flags.store_user.clone() else { return Ok(None) };
        let password = match &self.flags.store_password_file {
            Some(path) => {
                first_line(path).with_context(|| format!("cannot read the password in {}", path.display()))?
            }
            None => std::env::var(PASSWORD)
                .with_context(|| format!("--store-user needs --store-password-file, or the password in {PASSWORD}"))?,
        };
        Ok(Some(User { name, password }))
    }
}

/// The variable that may hold the password of the store's user.
const PASSWORD: &str = "MESHLOOM_STORE_PASSWORD";

/// Warns of a secret that other users of the host can read. It is used all the same, because Kubernetes mounts secrets
/// so.
fn warn_if_others_read(path: &Path) {
    let mode = path.metadata().map(|metadata| metadata.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o077 != 0) {
        tracing::warn!("other users can read {}: `chmod 600` keeps it yours", path.display());
    }
}

/// Returns the first line of a file. It reads no more bytes than a password may have.
fn first_line(path: &Path) -> io::Result<String> {
    const LONGEST: u64 = 4096;
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

/// Returns the number of this process and the number of processes; `None` if it is a replica of one process.
fn place(flags: &ProcessFlags) -> Result<Option<(usize, usize)>> {
    if let (Some(number), Some(count)) = (flags.process_id, flags.process_count) {
        if number >= count {
            bail!("--process-id {number} is not one of {count} processes, which count from 0");
        }
        return Ok(Some((number, count)));
    }
    if flags.processes.is_none() {
        return Ok(None);
    }
    let launched = Launched::detect(&own_variable)?;
    Ok(Some((launched.process, launched.count)))
}

/// Returns the place of a client of this process among those of the others.
fn place_of_client(member: &Member) -> ProcessPlace {
    let store = Arc::new(StoreForClients(member.store().clone()));
    ProcessPlace { number: member.number(), count: member.count(), store }
}

fn register(client: &Client) -> Result<()> {
    if client.platform().kind() == PlatformKind::Cpu {
        client.plugin().register::<Crossing>()?;
    }
    Ok(())
}
