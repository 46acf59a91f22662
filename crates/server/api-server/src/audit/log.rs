//! Where do audit events go?
//!
//! To a file, one line each, written by a thread of its own. Requests never wait for it: where it cannot follow, events
//! are lost and counted. Files are rotated as upstream does.

use jiff::{Timestamp, ToSpan};
use pointsman_telemetry::{Counter, Definition, Family, Registry};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Events that wait to be written. Upstream's buffer.
const WAITING: usize = 10_000;

/// Where the log is, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `-` is standard output.
    pub path: PathBuf,
    /// Bytes of a file before the next one is begun.
    pub max_bytes: u64,
    /// Old files that are kept; 0 keeps all.
    pub max_backups: usize,
    /// Days that old files are kept; 0 keeps them without a limit.
    pub max_age_days: u32,
}

/// An open audit log.
#[derive(Debug)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    metrics: Metrics,
}

/// What is counted.
#[derive(Clone, Debug)]
pub struct Metrics {
    events: Counter,
    errors: Family<Counter>,
}

impl Metrics {
    pub fn new(registry: &Registry) -> Self {
        let define = Definition::new;
        Self {
            events: registry.counter(define(
                "apiserver_audit_event_total",
                "Audit events that were generated and given to the log.",
            )),
            errors: registry.counters(
                define(
                    "apiserver_audit_error_total",
                    "Audit events that were lost, because the log could not be written or not fast enough.",
                )
                .labels(&["plugin"]),
            ),
        }
    }

    fn lost(&self) {
        self.errors.with(&["log"]).inc();
    }
}

impl Log {
    /// Opens the log, and fails where it cannot be written.
    pub fn open(settings: LogSettings, metrics: Metrics) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(WAITING);
        let mut files = Files::open(settings)?;
        let counts = metrics.clone();
        let thread = std::thread::Builder::new().name("audit-log".into());
        thread.spawn(move || files.follow(&waiting, &counts))?;
        Ok(Self { lines, metrics })
    }

    /// Adds an event, if there is room.
    pub fn write(&self, event: &Value) {
        let line = format!("{event}\n").into_bytes();
        match self.lines.try_send(line) {
            Ok(()) => self.metrics.events.inc(),
            Err(_) => self.metrics.lost(),
        }
    }
}

/// The file that is written, and what becomes of those before it.
struct Files {
    settings: LogSettings,
    out: BufWriter<Box<dyn Write + Send>>,
    bytes: u64,
}

impl Files {
    fn open(settings: LogSettings) -> io::Result<Self> {
        if settings.path == Path::new("-") {
            return Ok(Self {
                out: BufWriter::new(Box::new(io::stdout())),
                bytes: 0,
                settings: LogSettings {
                    max_bytes: u64::MAX,
                    ..settings
                },
            });
        }
        let file = append(&settings.path)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            out: BufWriter::new(Box::new(file)),
            bytes,
            settings,
        })
    }

    /// Writes lines until there will be no more. What is there is on its way to the disk before the thread waits.
    fn follow(&mut self, lines: &Receiver<Vec<u8>>, metrics: &Metrics) {
        while let Ok(first) = lines.recv() {
            for line in std::iter::once(first).chain(lines.try_iter()) {
                if let Err(error) = self.write(&line) {
                    metrics.lost();
                    tracing::warn!(%error, path = %self.settings.path.display(), "an audit event could not be written");
                }
            }
            if let Err(error) = self.out.flush() {
                metrics.lost();
                tracing::warn!(%error, path = %self.settings.path.display(), "audit events could not be written");
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.settings.max_bytes {
            self.rotate(Timestamp::now())?;
        }
        self.out.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    fn rotate(&mut self, now: Timestamp) -> io::Result<()> {
        self.out.flush()?;
        std::fs::rename(&self.settings.path, backup(&self.settings.path, now))?;
        self.out = BufWriter::new(Box::new(append(&self.settings.path)?));
        self.bytes = 0;
        for old in expired(&self.settings, now)? {
            std::fs::remove_file(old)?;
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The parts of the names of old files: directory, start and end.
fn parts(path: &Path) -> (&Path, String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let dir = path.parent().filter(|dir| *dir != Path::new(""));
    let end = match text(path.extension()) {
        end if end.is_empty() => end,
        end => format!(".{end}"),
    };
    (dir.unwrap_or(Path::new(".")), text(path.file_stem()) + "-", end)
}

const STAMP: &str = "%Y-%m-%dT%H-%M-%S%.3f";

/// The name of an old file: `audit-2026-01-02T03-04-05.678.log`, as upstream's.
fn backup(path: &Path, now: Timestamp) -> PathBuf {
    let (dir, start, end) = parts(path);
    dir.join(format!("{start}{}{end}", now.strftime(STAMP)))
}

/// The old files that are to go.
fn expired(settings: &LogSettings, now: Timestamp) -> io::Result<Vec<PathBuf>> {
    let (dir, start, end) = parts(&settings.path);
    let mut old = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let stamp = name.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
        // Other files of this directory are somebody else's.
        let length = now.strftime(STAMP).to_string().len();
        if let Some(stamp) = stamp.filter(|stamp| stamp.len() == length && stamp.starts_with("20")) {
            old.push((stamp.to_owned(), dir.join(&name)));
        }
    }
    old.sort();
    let youngest = match settings.max_age_days {
        0 => String::new(),
        days => {
            let hours = (i64::from(days) * 24).hours();
            let oldest = now.checked_sub(hours).unwrap_or(Timestamp::MIN);
            oldest.strftime(STAMP).to_string()
        }
    };
    let spare = match settings.max_backups {
        0 => 0,
        kept => old.len().saturating_sub(kept),
    };
    let gone = old
        .into_iter()
        .enumerate()
        .filter(|(at, (stamp, _))| *at < spare || *stamp < youngest);
    Ok(gone.map(|(_, (_, path))| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(path: PathBuf) -> LogSettings {
        LogSettings {
            path,
            max_bytes: 100,
            max_backups: 2,
            max_age_days: 0,
        }
    }

    #[test]
    fn files_are_rotated_by_size_and_so_many_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("audit.log");
        let mut files = Files::open(settings(path.clone())).unwrap();
        for second in 0..5 {
            files.write(&[b'x'; 60]).unwrap();
            let now: Timestamp = format!("2026-01-02T03:04:0{second}Z").parse().unwrap();
            files.rotate(now).unwrap();
        }
        std::fs::write(home.path().join("audit-notes.log"), "mine").unwrap();
        files.write(b"last").unwrap();
        files.out.flush().unwrap();
        let names = std::fs::read_dir(home.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "audit-2026-01-02T03-04-03.000.log",
                "audit-2026-01-02T03-04-04.000.log",
                "audit-notes.log",
                "audit.log"
            ]
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"last");
        let old = LogSettings {
            max_backups: 0,
            max_age_days: 1,
            ..settings(path)
        };
        let now = "2026-01-03T03:04:03.5Z".parse().unwrap();
        let gone = expired(&old, now).unwrap();
        assert_eq!(
            gone,
            [home.path().join("audit-2026-01-02T03-04-03.000.log")],
            "what is older than a day"
        );
    }

    #[test]
    fn what_cannot_be_written_fast_enough_is_lost_and_counted() {
        let registry = Registry::new();
        let (lines, waiting) = sync_channel(2);
        let log = Log {
            lines,
            metrics: Metrics::new(&registry),
        };
        for at in 0..5 {
            log.write(&json!({"at": at}));
        }
        let text = registry.render();
        assert!(text.contains("apiserver_audit_event_total 2\n"), "{text}");
        assert!(
            text.contains("apiserver_audit_error_total{plugin=\"log\"} 3\n"),
            "{text}"
        );
        assert_eq!(waiting.try_iter().next().unwrap(), b"{\"at\":0}\n");
    }
}
