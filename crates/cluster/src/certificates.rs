//! Certificates of a run: an authority of its own, and one certificate for all its hosts.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use meshloom_cli::CertificateFlags;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

/// The reason why certificates were not made.
#[derive(thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum CertificateError {
    /// The folder is not empty.
    #[error("{} is not empty, and nothing in it is replaced: name another folder", .folder.display())]
    Exists { folder: PathBuf },
    /// A host is neither a host name nor an IP address.
    #[error("--host {host:?} is neither a host name nor an IP address: {reason}")]
    Host { host: String, reason: String },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The certificate library reports an error.
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
}

meshloom_hlo::debug_is_message!(CertificateError);

/// The hosts that the certificate names when the user names none.
const THIS_HOST: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Writes the authority's certificate and key, and those of the run, into a folder that only this user can read.
/// Returns advice on their use.
///
/// # Errors
/// The folder has files or cannot be written to, or a host is neither a host name nor an IP address.
pub fn make(flags: &CertificateFlags) -> Result<String, CertificateError> {
    let hosts = match &flags.host[..] {
        [] => THIS_HOST.map(str::to_owned).to_vec(),
        hosts => hosts.to_vec(),
    };
    let folder = &flags.folder;
    let mut run = CertificateParams::default();
    for host in &hosts {
        let wrong = |reason: String| CertificateError::Host { host: host.clone(), reason };
        let is_name = |part: &str| {
            !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter))
        };
        if host.parse::<IpAddr>().is_err() && !host.split('.').all(is_name) {
            return Err(wrong("a name has letters, digits, hyphens and dots".to_owned()));
        }
        let parsed = CertificateParams::new(vec![host.clone()]).map_err(|error| wrong(error.to_string()))?;
        run.subject_alt_names.extend(parsed.subject_alt_names);
    }
    let now = OffsetDateTime::now_utc();
    // The clocks of hosts differ, so the certificates are valid from an hour ago.
    let (from, to) = (now - Duration::hours(1), now + Duration::days(flags.days.into()));
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "meshloom authority of a run");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    run.distinguished_name.push(DnType::CommonName, "meshloom run");
    run.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Each host both answers other hosts and connects to them.
    run.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    run.use_authority_key_identifier_extension = true;
    for certificate in [&mut authority, &mut run] {
        (certificate.not_before, certificate.not_after) = (from, to);
    }
    let (authority_key, run_key) = (KeyPair::generate()?, KeyPair::generate()?);
    let authority_pem = authority.self_signed(&authority_key)?.pem();
    let run_pem = run.signed_by(&run_key, &Issuer::from_params(&authority, &authority_key))?.pem();

    make_folder(folder)?;
    let files = [
        ("ca.pem", authority_pem),
        ("ca.key", authority_key.serialize_pem()),
        ("run.pem", run_pem),
        ("run.key", run_key.serialize_pem()),
    ];
    for (name, text) in files {
        let path = folder.join(name);
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| CertificateError::Write { path, source })?;
    }
    Ok(advice(folder, &hosts, flags.days))
}

fn make_folder(folder: &Path) -> Result<(), CertificateError> {
    let failed = |source| CertificateError::Write { path: folder.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if fs::read_dir(folder).map_err(failed)?.next().is_some() {
                return Err(CertificateError::Exists { folder: folder.to_owned() });
            }
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(failed)
        }
        made => made.map_err(failed),
    }
}

/// Returns advice on the use of the files.
fn advice(folder: &Path, hosts: &[String], days: u32) -> String {
    let file = |name: &str| quoted(&folder.join(name).to_string_lossy());
    let [authority, certificate, key] = ["ca.pem", "run.pem", "run.key"].map(file);
    let first = hosts.first().map_or("localhost", String::as_str);
    let url =
        |host: &str| if host.contains(':') { format!("https://[{host}]:2379") } else { format!("https://{host}:2379") };
    // etcd listens at addresses, not at host names.
    let listen = match first {
        "localhost" => url("127.0.0.1"),
        address if address.parse::<IpAddr>().is_ok() => url(address),
        _ => url("0.0.0.0"),
    };
    let store = url(first);
    let mut text = String::new();
    let _ =
        writeln!(text, "Certificates for {}, valid for {days} days, are in {}.", hosts.join(", "), folder.display());
    let _ = writeln!(
        text,
        "\netcd, where the processes of the run meet:\n  etcd --listen-client-urls={listen} --advertise-client-urls={store} \
         --cert-file={certificate} --key-file={key} --trusted-ca-file={authority} --client-cert-auth"
    );
    let _ = writeln!(
        text,
        "\nEach process:\n  meshloom train --store {store} --store-ca {authority} --store-cert {certificate} --store-key {key}"
    );
    let _ = writeln!(
        text,
        "\nEach host needs these three files. {} stays here: whoever has it can make more certificates of this run.",
        file("ca.key")
    );
    text
}

/// Quotes a word for a command line where that is needed.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
