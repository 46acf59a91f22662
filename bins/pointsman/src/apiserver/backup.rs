//! `pointsman apiserver backup` and `restore`.

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::{Args, Subcommand};
use futures::stream::{BoxStream, StreamExt};
use pointsman_api_client::client::Download;
use pointsman_api_client::connect::{Source, connect};
use pointsman_api_server::auth::keyring;
use pointsman_store::StoreError;
use pointsman_store::backup::{self, Contents, Reader};
use pointsman_store::embedded::{self, EmbeddedStore, Options, RestoreError};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a long backup says how far it is.
const PROGRESS: Duration = Duration::from_secs(1);

#[derive(Subcommand)]
pub enum Action {
    /// Write everything in the embedded store to one file, whether the server runs or not.
    ///
    /// The file holds the objects as they are at one moment, and a checksum. It is checked before it gets its name. With
    /// a running server it is asked for with the administrator's kubeconfig. Keys, certificates and kubeconfigs are not
    /// in it.
    #[command(
        after_help = "Exit codes: 0 the backup is whole, 1 there is none (the message says why), 2 wrong usage."
    )]
    Backup(BackupFlags),
    /// Make the embedded store from a backup. The server must not run.
    ///
    /// Revisions go on far after the backup's, and older ones answer 410, so that every client lists again.
    #[command(
        after_help = "Exit codes: 0 restored, 1 the store is as it was (the message says why), 2 wrong usage."
    )]
    Restore(RestoreFlags),
}

#[derive(Args)]
pub struct BackupFlags {
    /// The server's data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// How a running server is asked; the administrator's in the data directory unless given.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The file to write. One that is there is replaced when the new one is whole.
    #[arg(value_name = "FILE")]
    to: PathBuf,
}

#[derive(Args)]
pub struct RestoreFlags {
    /// The server's data directory.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Replace the store that is there; it is kept as `store.redb.replaced`.
    #[arg(long)]
    force: bool,
    /// How many revisions to leave out after the backup's: more than were written since it was made, so that none is
    /// used twice. (etcd's flag of the same name.)
    #[arg(long, value_name = "N", default_value_t = 1_000_000_000)]
    bump_revision: u64,
    /// The backup.
    #[arg(value_name = "FILE")]
    from: PathBuf,
}

/// Carries out either.
pub async fn run(action: Action) -> anyhow::Result<()> {
    let said = match action {
        Action::Backup(flags) => back_up(&flags).await?,
        Action::Restore(flags) => tokio::task::spawn_blocking(move || restore(&flags)).await??,
    };
    Ok(writeln!(std::io::stdout(), "{said}")?)
}

async fn back_up(flags: &BackupFlags) -> anyhow::Result<String> {
    let mut part = flags.to.clone().into_os_string();
    part.push(".part");
    let part = PathBuf::from(part);
    let saved = save(flags, &part).await;
    if saved.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    let (contents, bytes) = saved?;
    std::fs::rename(&part, &flags.to).with_context(|| format!("cannot write {}", flags.to.display()))?;
    let Contents { revision, entries } = contents;
    Ok(format!(
        "{}: {entries} keys at revision {revision}, {bytes} bytes",
        flags.to.display()
    ))
}

async fn save(flags: &BackupFlags, part: &Path) -> anyhow::Result<(Contents, u64)> {
    let mut pieces = Pieces::of(flags).await?;
    let cannot = || format!("cannot write {}", part.display());
    // Whoever may read it may read everything in the cluster.
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(part)
        .with_context(cannot)?;
    let (mut bytes, mut said) = (0, Instant::now());
    while let Some(piece) = pieces.next().await? {
        file.write_all(&piece).with_context(cannot)?;
        bytes += piece.len() as u64;
        if said.elapsed() > PROGRESS {
            said = Instant::now();
            eprintln!("{} MiB so far", bytes >> 20);
        }
    }
    file.sync_all().with_context(cannot)?;
    let contents = read(part)?.verify().context("the backup did not arrive whole")?;
    Ok((contents, bytes))
}

/// Where the pieces of a backup come from.
enum Pieces {
    Server(Download),
    Store(BoxStream<'static, Result<Bytes, StoreError>>),
}

impl Pieces {
    async fn of(flags: &BackupFlags) -> anyhow::Result<Self> {
        let dir = flags.data_dir.join("store");
        if !embedded::exists(&dir) {
            bail!(
                "there is no embedded store in {}; objects that are kept in etcd are backed up with \
                 `etcdctl snapshot save FILE`",
                dir.display()
            );
        }
        let opened =
            tokio::task::spawn_blocking(move || EmbeddedStore::open(&dir, Options::default())).await?;
        match opened {
            Ok(store) => Ok(Self::Store(backup::write(Arc::new(store)).boxed())),
            Err(StoreError::InUse(_)) => Ok(Self::Server(ask_server(flags).await?)),
            Err(error) => Err(error.into()),
        }
    }

    async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        Ok(match self {
            Self::Server(download) => download.next().await.context("the server stopped answering")?,
            Self::Store(pieces) => pieces.next().await.transpose()?,
        })
    }
}

async fn ask_server(flags: &BackupFlags) -> anyhow::Result<Download> {
    let usual = || flags.data_dir.join("admin.kubeconfig");
    let kubeconfig = flags.kubeconfig.clone().unwrap_or_else(usual);
    let client = connect(&Source::Kubeconfig(kubeconfig), "pointsman-backup").await?;
    let download = client.download("/backup").await;
    download.context("asking the running server for a backup")
}

fn restore(flags: &RestoreFlags) -> anyhow::Result<String> {
    let from = flags.from.display();
    let dir = flags.data_dir.join("store");
    let restored = embedded::restore(&dir, read(&flags.from)?, flags.bump_revision, flags.force);
    let restored = restored.map_err(|error| match error {
        RestoreError::Exists(store) => anyhow::anyhow!(
            "{} exists: --force replaces it, and keeps it as store.redb.replaced",
            store.display()
        ),
        RestoreError::Backup(why) => anyhow::anyhow!("{from} cannot be restored: {why}"),
        RestoreError::Store(StoreError::InUse(dir)) => {
            anyhow::anyhow!("{dir} is in use: stop the server first")
        }
        RestoreError::Store(error) => error.into(),
    })?;
    // The backup may need keys that what was there did not.
    keyring::forget_done(&flags.data_dir.join("pki"))?;
    let replaced = restored.replaced.map_or(String::new(), |path| {
        format!("; what was there is in {}", path.display())
    });
    Ok(format!(
        "restored {} keys from {from}, at revision {}{replaced}",
        restored.entries, restored.revision
    ))
}

fn read(path: &Path) -> anyhow::Result<Reader<BufReader<File>>> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    Reader::new(BufReader::new(file)).map_err(|why| anyhow::anyhow!("{name} cannot be restored: {why}"))
}
