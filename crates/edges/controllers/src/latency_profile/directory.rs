//! How is a kubeadm-style control plane configured? By flags in static-pod manifests and by the
//! kubelets' configuration files, in directories that somebody names.
//!
//! What runs is what the files say, unless processes are observed as well ([`Directories::observing`]):
//! then a step is done only when the running program has the flag. Kubelets read their file at start, so
//! the caller restarts them; a file is all that can be seen of them from here.
//!
//! Files are replaced whole by a rename, with their mode. Originals are kept before the first change. What
//! owners agreed on is a file as well, so that a run that was cut off is resumed by the next.

use super::driver::{Desk, Doing, Driver, DriverError, Part, Posted, Reading, Version};
use super::manifest::{self, ManifestError};
use super::observe::{Processes, Running};
use super::wire::{read_ledger, write_ledger};
use jiff::Timestamp;
use pointsman_latency_profile::plan::Change;
use pointsman_latency_profile::profile::DEFAULT;
use pointsman_latency_profile::rollout::{
    Condition, Ledger, NodeReading, NodesReading, Notice, Problem, Single, Spec, Stored, merge,
};
use pointsman_latency_profile::state::{Component, Pool};
use pointsman_latency_profile::units::{GracePeriod, ReportPeriod, Tolerations};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use thiserror::Error;

const SERVER: &str = "kube-apiserver";
const MANAGER: &str = "kube-controller-manager";
const GRACE: &str = "node-monitor-grace-period";
const NOT_READY: &str = "default-not-ready-toleration-seconds";
const UNREACHABLE: &str = "default-unreachable-toleration-seconds";
/// Where our own files are, below the directory that is named.
const HOME: &str = "pointsman-profile";

/// Why directories cannot be worked on.
#[derive(Debug, Error)]
pub enum DirectoryError {
    /// Another run is at work.
    #[error("{} is held by another run; wait for it to end", .0.display())]
    Busy(PathBuf),
    /// A file or directory cannot be used.
    #[error("{}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The files of one control plane and its kubelets.
#[derive(Clone)]
pub struct Directories {
    home: PathBuf,
    manifests: PathBuf,
    kubelets: Vec<PathBuf>,
    processes: Option<Processes>,
    spec: Spec,
    said: Arc<Mutex<Vec<Stored>>>,
    told: Arc<dyn Fn(&Notice) + Send + Sync>,
    _lock: Arc<File>,
}

struct Files {
    all: Directories,
    component: Component,
}

impl Directories {
    /// `root` has `manifests/`, as /etc/kubernetes does; each kubelet has a file. `told` hears the news.
    pub fn open(
        root: &Path,
        kubelets: &[PathBuf],
        spec: Spec,
        told: impl Fn(&Notice) + Send + Sync + 'static,
    ) -> Result<Self, DirectoryError> {
        let manifests = root.join("manifests");
        if !manifests.is_dir() {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no such directory");
            return Err(DirectoryError::Io {
                path: manifests,
                source,
            });
        }
        let home = root.join(HOME);
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| DirectoryError::Io { path, source }
        };
        fs::create_dir_all(home.join("originals")).map_err(failed(&home))?;
        let path = home.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(failed(&path))?;
        lock.try_lock().map_err(|_| DirectoryError::Busy(path))?;
        Ok(Self {
            home,
            manifests,
            kubelets: kubelets.to_vec(),
            processes: None,
            spec,
            said: Arc::default(),
            told: Arc::new(told),
            _lock: Arc::new(lock),
        })
    }

    /// Also asks running processes for their flags, below this directory, usually `/proc`.
    pub fn observing(mut self, root: &Path) -> Self {
        self.processes = Some(Processes::at(root));
        self
    }

    /// The three components, in the order of their owners.
    pub fn drivers(&self) -> [Arc<dyn Driver>; 3] {
        Component::ALL.map(|component| {
            Arc::new(Files {
                all: self.clone(),
                component,
            }) as Arc<dyn Driver>
        })
    }

    /// What was said last.
    pub fn conditions(&self) -> Vec<Stored> {
        self.said.lock().expect("nobody panics with it").clone()
    }

    /// Puts every file back as it was before the first change; tells which.
    pub fn restore(&self) -> Result<Vec<PathBuf>, DirectoryError> {
        let mut restored = Vec::new();
        for path in self.all_files() {
            let original = self.original(&path);
            let failed = |source| DirectoryError::Io {
                path: path.clone(),
                source,
            };
            match fs::read(&original) {
                Ok(text) => {
                    replace(&path, &text).map_err(failed)?;
                    fs::remove_file(&original).map_err(failed)?;
                    restored.push(path);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let _ = fs::remove_file(self.home.join("ledger.json"));
        Ok(restored)
    }

    fn all_files(&self) -> Vec<PathBuf> {
        let manifests = [SERVER, MANAGER].map(|program| self.manifest(program));
        manifests
            .into_iter()
            .chain(self.kubelets.iter().cloned())
            .collect()
    }

    fn manifest(&self, program: &str) -> PathBuf {
        self.manifests.join(format!("{program}.yaml"))
    }

    /// Where the original of a file is kept: its path, flattened.
    fn original(&self, path: &Path) -> PathBuf {
        let name = path.to_string_lossy().replace('/', "%");
        self.home.join("originals").join(name)
    }

    fn epoch_path(&self, component: Component) -> PathBuf {
        self.home.join(format!("{component:?}.epoch"))
    }

    fn keep_original(&self, path: &Path, text: &str) -> Result<(), DriverError> {
        let original = self.original(path);
        if original.exists() {
            return Ok(());
        }
        replace(&original, text.as_bytes())
            .map_err(|error| refused(&original, "cannot keep the original", &error))
    }
}

impl Files {
    fn paths(&self) -> Vec<PathBuf> {
        match self.component {
            Component::Kubelet => self.all.kubelets.clone(),
            Component::KubeControllerManager => vec![self.all.manifest(MANAGER)],
            Component::KubeAPIServer => vec![self.all.manifest(SERVER)],
        }
    }

    /// The texts of all files of the component, and what they are together.
    fn texts(&self) -> Result<(Vec<(PathBuf, String)>, Version), Problem> {
        let mut texts = Vec::new();
        let mut digest = Sha256::new();
        for path in self.paths() {
            let text = fs::read_to_string(&path)
                .map_err(|error| Problem::Refused(format!("cannot read {}: {error}", path.display())))?;
            digest.update(text.as_bytes());
            digest.update([0]);
            texts.push((path, text));
        }
        digest.update(format!("{:?}", self.epoch()));
        let digest: String = digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Ok((texts, Version(Some(digest))))
    }

    fn epoch(&self) -> Option<u64> {
        let text = fs::read_to_string(self.all.epoch_path(self.component)).ok()?;
        text.trim().parse().ok()
    }

    fn read_now(&self) -> Reading {
        let (texts, version) = match self.texts() {
            Ok(texts) => texts,
            Err(problem) => return self.troubled(problem),
        };
        let part = match self.component {
            Component::Kubelet => self.read_kubelets(&texts),
            Component::KubeControllerManager => self.read_manager(&texts[0]),
            Component::KubeAPIServer => self.read_server(&texts[0]),
        };
        match part {
            Ok(part) => Reading { part, version },
            Err(problem) => Reading {
                version,
                ..self.troubled(problem)
            },
        }
    }

    fn troubled(&self, problem: Problem) -> Reading {
        let (problem, epoch) = (Some(problem), self.epoch());
        let part = match self.component {
            Component::Kubelet => Part::Nodes(NodesReading {
                problem,
                epoch,
                ..NodesReading::default()
            }),
            Component::KubeControllerManager => Part::Grace(Single {
                problem,
                epoch,
                ..Single::default()
            }),
            Component::KubeAPIServer => Part::Tolerations(Single {
                problem,
                epoch,
                ..Single::default()
            }),
        };
        Reading {
            part,
            version: Version(Some(String::new())),
        }
    }

    fn read_kubelets(&self, texts: &[(PathBuf, String)]) -> Result<Part, Problem> {
        let mut reading = NodesReading {
            epoch: self.epoch(),
            ..NodesReading::default()
        };
        for (path, text) in texts {
            let frequency = manifest::frequency(text).map_err(|error| trouble(path, &error))?;
            // The kubelet's own default is that of the Default profile.
            let period = match &frequency {
                Some(text) => ReportPeriod::parse(text).map_err(|error| invalid(path, &error))?,
                None => DEFAULT.values.report,
            };
            let node = NodeReading {
                pool: Pool::default(),
                announced: Some(period),
                silent: false,
            };
            reading.nodes.insert(path.display().to_string(), node);
            let same = frequency.is_some()
                && reading
                    .configured
                    .get(&Pool::default())
                    .is_none_or(|other| *other == period);
            if same {
                reading.configured.insert(Pool::default(), period);
            }
        }
        let all = reading.nodes.values();
        let agreed = all
            .clone()
            .all(|node| node.announced == reading.configured.get(&Pool::default()).copied());
        if !agreed {
            reading.configured.clear();
        }
        Ok(Part::Nodes(reading))
    }

    fn read_manager(&self, (path, text): &(PathBuf, String)) -> Result<Part, Problem> {
        let parse = |text: &str| GracePeriod::parse(text).map_err(|error| invalid(path, &error));
        let written = manifest::flag(text, MANAGER, GRACE).map_err(|error| trouble(path, &error))?;
        let configured = written.as_deref().map(parse).transpose()?;
        // Releases differ in their default; this is the shortest that any has.
        let default = DEFAULT.values.grace;
        let in_file = configured.unwrap_or(default);
        let announced = match self.running(MANAGER, GRACE) {
            Running::Nowhere => in_file,
            Running::Here(values) => values
                .iter()
                .map(|value| value.as_deref().map_or(Ok(default), parse))
                .collect::<Result<Vec<_>, _>>()?
                .into_iter()
                .min()
                .unwrap_or(in_file),
        };
        Ok(Part::Grace(Single {
            configured,
            announced: Some(announced),
            epoch: self.epoch(),
            problem: None,
        }))
    }

    fn read_server(&self, (path, text): &(PathBuf, String)) -> Result<Part, Problem> {
        let parse = |text: &str| Tolerations::parse_seconds(text).map_err(|error| invalid(path, &error));
        let default = DEFAULT.values.tolerations;
        let mut written = [None; 2];
        let mut announced = [default.not_ready, default.unreachable];
        for (index, flag) in [NOT_READY, UNREACHABLE].into_iter().enumerate() {
            let text = manifest::flag(text, SERVER, flag).map_err(|error| trouble(path, &error))?;
            written[index] = text.as_deref().map(parse).transpose()?;
            announced[index] = written[index].unwrap_or(announced[index]);
            if let Running::Here(values) = self.running(SERVER, flag) {
                for value in values {
                    let running = value.as_deref().map_or(Ok(default.not_ready), parse)?;
                    if Some(running) != written[index] {
                        announced[index] = running;
                    }
                }
            }
        }
        let both = |[not_ready, unreachable]: [u64; 2]| Tolerations {
            not_ready,
            unreachable,
        };
        Ok(Part::Tolerations(Single {
            configured: written[0].zip(written[1]).map(|(a, b)| both([a, b])),
            announced: Some(both(announced)),
            epoch: self.epoch(),
            problem: None,
        }))
    }

    fn running(&self, program: &str, flag: &str) -> Running {
        let processes = self.all.processes.as_ref();
        processes.map_or(Running::Nowhere, |processes| processes.flag(program, flag))
    }

    fn write_now(&self, epoch: u64, change: Option<&Change>, version: &Version) -> Result<(), DriverError> {
        let (texts, found) = self
            .texts()
            .map_err(|problem| DriverError::Refused(problem.to_string()))?;
        if found != *version {
            return Err(DriverError::Changed);
        }
        if let Some(change) = change {
            let mut edits = Vec::new();
            for (path, text) in &texts {
                let edited = edit(text, change)
                    .map_err(|error| DriverError::Refused(format!("{}: {error}", path.display())))?;
                self.all.keep_original(path, text)?;
                edits.push((path, text, edited));
            }
            for (index, (path, _, edited)) in edits.iter().enumerate() {
                if let Err(error) = replace(path, edited.as_bytes()) {
                    // What was replaced already is put back: a component changes whole or not at all.
                    for (path, text, _) in &edits[..index] {
                        if let Err(error) = replace(path, text.as_bytes()) {
                            tracing::error!(path = %path.display(), %error, "cannot put a file back");
                        }
                    }
                    return Err(refused(path, "cannot write", &error));
                }
            }
        }
        let path = self.all.epoch_path(self.component);
        replace(&path, epoch.to_string().as_bytes()).map_err(|error| refused(&path, "cannot write", &error))
    }
}

impl Driver for Files {
    fn read(&self) -> Doing<'_, Reading> {
        Box::pin(async { Ok(self.read_now()) })
    }

    fn prepare(&self) -> Doing<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a self, epoch: u64, change: Option<&'a Change>, version: &'a Version) -> Doing<'a, ()> {
        Box::pin(async move { self.write_now(epoch, change, version) })
    }
}

impl Desk for Directories {
    fn ledger(&self) -> Doing<'_, (Ledger, Version)> {
        Box::pin(async {
            match fs::read_to_string(self.home.join("ledger.json")) {
                Ok(text) => Ok((read_ledger(&text).unwrap_or_default(), Version(Some(text)))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok((Ledger::default(), Version(None)))
                }
                Err(error) => Err(DriverError::Unknown(error.to_string())),
            }
        })
    }

    fn record<'a>(&'a self, ledger: &'a Ledger, _version: &'a Version) -> Doing<'a, ()> {
        // The lock keeps everybody else out.
        Box::pin(async {
            let text = write_ledger(ledger);
            let path = self.home.join("ledger.json");
            replace(&path, text.as_bytes()).map_err(|error| refused(&path, "cannot write", &error))
        })
    }

    fn spec(&self) -> Doing<'_, (Option<Spec>, Posted)> {
        let posted = Posted {
            conditions: self.conditions(),
            ..Posted::default()
        };
        Box::pin(async { Ok((Some(self.spec.clone()), posted)) })
    }

    fn post<'a>(
        &'a self,
        _posted: &'a Posted,
        conditions: &'a [Condition],
    ) -> Doing<'a, Option<Vec<Stored>>> {
        let mut said = self.said.lock().expect("nobody panics with it");
        if let Some(merged) = merge(&said, conditions, Timestamp::now()) {
            *said = merged;
        }
        drop(said);
        Box::pin(async { Ok(None) })
    }

    fn tell(&self, _posted: &Posted, notice: &Notice) {
        (self.told)(notice);
    }
}

fn edit(text: &str, change: &Change) -> Result<String, ManifestError> {
    match change {
        Change::Reports(periods) => {
            let period = periods
                .get(&Pool::default())
                .expect("the default pool is always set");
            manifest::with_frequency(text, &period.to_string())
        }
        Change::Grace(grace) => manifest::with_flag(text, MANAGER, GRACE, &grace.to_string()),
        Change::Tolerations(seconds) => {
            let text = manifest::with_flag(text, SERVER, NOT_READY, &seconds.not_ready.to_string())?;
            manifest::with_flag(&text, SERVER, UNREACHABLE, &seconds.unreachable.to_string())
        }
    }
}

/// Replaces a file whole, keeping its mode. The name of the temporary file begins with a dot, which
/// kubelets do not take for a manifest.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = directory.join(format!(".{name}.pointsman"));
    let mode = fs::metadata(path).map_or(0o600, |found| found.permissions().mode() & 0o7777);
    let write = || {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(text)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(directory)?.sync_all()
    };
    let done = write();
    if done.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    done
}

fn trouble(path: &Path, error: &ManifestError) -> Problem {
    Problem::Refused(format!("{}: {error}", path.display()))
}

fn invalid(path: &Path, error: &pointsman_latency_profile::units::InvalidValue) -> Problem {
    Problem::Refused(format!("{}: {error}", path.display()))
}

fn refused(path: &Path, what: &str, error: &io::Error) -> DriverError {
    DriverError::Refused(format!("{what} {}: {error}", path.display()))
}
