//! Which keys are in a file, which of them is in use, and how does another one take its place?
//!
//! Two files in `pki/` hold keys that others than the key's owner depend on: `sa.key` signs the tokens of service
//! accounts, `encryption.key` encrypts Secrets in the store. Each is a PEM file whose first key is in use; the others
//! are still believed, or will be. A comment before each key says which:
//!
//! | step  | in use | also believed | what is replaced |
//! |-------|--------|---------------|------------------|
//! |       | old    |               |                  |
//! | trust | old    | new           | the file         |
//! | use   | new    | old           | the file         |
//! | drop  | new    |               | the file         |
//!
//! Each step replaces one file, so that a crash leaves the state before or after it. Servers that share an etcd have
//! copies of both files: all take `trust` before the first takes `use`, and `use` before the first takes `drop`.

use super::files;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

const IN_USE: &str = "in use";
const NEXT: &str = "next";
const OLD: &str = "old";
const ENCRYPTION_LABEL: &str = "POINTSMAN ENCRYPTION KEY";
/// How long tokens of pods are good for, with a little for clocks that differ.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3607 + 120);
/// Ends of tokens are remembered by the hour, so that they are seldom written.
const HOUR: u64 = 3600;

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Signs tokens of service accounts.
    Tokens,
    /// Encrypts Secrets in the store.
    Encryption,
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new key is made, and believed beside the present one.
    Trust,
    /// The new one is used from now on.
    Use,
    /// The old one is no longer believed.
    Drop,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Trust => "trust",
            Self::Use => "use",
            Self::Drop => "drop",
        })
    }
}

/// Why keys cannot be used, or a step is not taken; nothing was changed then. Never shows a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot access {path}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the keys in {path} are unusable: {problem}")]
    Unusable { path: PathBuf, problem: String },
    #[error("no random bytes for a key")]
    NoRandomness,
    /// The steps have an order.
    #[error("the next step is `{next}`")]
    NotNow { next: Step },
    /// Something that the old key is needed for is still there.
    #[error("{0}")]
    StillNeeded(String),
}

/// One part of a PEM file.
#[derive(Clone, PartialEq, Eq)]
pub struct Section {
    pub label: String,
    pub bytes: Vec<u8>,
    /// What is said about it before.
    state: &'static str,
}

impl fmt::Debug for Section {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Section({}, {})", self.label, self.state)
    }
}

impl Section {
    fn text(&self) -> String {
        let encoded = BASE64_STANDARD.encode(&self.bytes);
        let (label, state) = (&self.label, self.state);
        let mut text = format!("# {state}\n-----BEGIN {label}-----\n");
        for line in encoded.as_bytes().chunks(64) {
            text.extend(line.iter().map(|byte| char::from(*byte)));
            text.push('\n');
        }
        text + &format!("-----END {label}-----\n")
    }
}

/// The parts of a PEM file.
pub fn sections(text: &str) -> Result<Vec<Section>, &'static str> {
    let mut found: Vec<Section> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("-----BEGIN ") {
        let (label, body) = after.split_once("-----").ok_or("a heading does not end")?;
        let end = format!("-----END {label}-----");
        let (body, after) = body.split_once(&end).ok_or("a part does not end")?;
        let packed: String = body.split_ascii_whitespace().collect();
        let bytes = BASE64_STANDARD.decode(packed);
        let said = before.lines().last().unwrap_or_default().trim_start_matches("# ");
        let known = [IN_USE, NEXT, OLD].into_iter().find(|state| *state == said);
        found.push(Section {
            label: label.to_owned(),
            bytes: bytes.map_err(|_| "a part is not base64")?,
            state: known.unwrap_or(if found.is_empty() { IN_USE } else { OLD }),
        });
        rest = after;
    }
    Ok(found)
}

impl Ring {
    /// Where the keys are, in the directory of the authority.
    pub fn path(self, pki: &Path) -> PathBuf {
        pki.join(match self {
            Self::Tokens => "sa.key",
            Self::Encryption => "encryption.key",
        })
    }

    /// The keys, the one in use first; one is made where there is none.
    pub fn open(self, pki: &Path) -> Result<Vec<Section>, KeyError> {
        files::private_dir(pki).map_err(at(pki))?;
        let path = self.path(pki);
        if files::read_if_there(&path).map_err(at(&path))?.is_none() {
            self.write(pki, &[self.generate(IN_USE)?])?;
        }
        self.read(pki)
    }

    fn read(self, pki: &Path) -> Result<Vec<Section>, KeyError> {
        let path = self.path(pki);
        let unusable = |problem: &str| KeyError::Unusable {
            path: path.clone(),
            problem: problem.into(),
        };
        let text = files::read_if_there(&path).map_err(at(&path))?;
        let text =
            text.ok_or_else(|| unusable("there are none; the API server makes one at its first start"))?;
        let keys = sections(&text).map_err(unusable)?;
        let encrypts = |key: &Section| key.label == ENCRYPTION_LABEL && key.bytes.len() == 32;
        if keys.is_empty() || (self == Self::Encryption && !keys.iter().all(encrypts)) {
            return Err(unusable("not a key"));
        }
        Ok(keys)
    }

    fn write(self, pki: &Path, keys: &[Section]) -> Result<(), KeyError> {
        let text: String = keys.iter().map(Section::text).collect();
        let path = self.path(pki);
        files::replace(&path, text.as_bytes(), files::SECRET).map_err(at(&path))
    }

    fn generate(self, state: &'static str) -> Result<Section, KeyError> {
        let (label, bytes) = match self {
            Self::Tokens => {
                let key = rcgen::KeyPair::generate().map_err(|_| KeyError::NoRandomness)?;
                ("PRIVATE KEY", key.serialize_der())
            }
            Self::Encryption => {
                let mut bytes = vec![0; 32];
                let filled = SystemRandom::new().fill(&mut bytes);
                filled.map_err(|_| KeyError::NoRandomness)?;
                (ENCRYPTION_LABEL, bytes)
            }
        };
        let label = label.to_owned();
        Ok(Section { label, bytes, state })
    }

    /// Where the rotation stands: how many keys there are, and what is next.
    pub fn status(self, pki: &Path) -> Result<(usize, Step), KeyError> {
        let keys = self.read(pki)?;
        Ok((keys.len(), next_step(&keys)))
    }

    /// Takes a step. `force` takes the last one though tokens that the old key has signed may be in use.
    pub fn take(self, pki: &Path, step: Step, now: SystemTime, force: bool) -> Result<(), KeyError> {
        let mut keys = self.read(pki)?;
        let next = next_step(&keys);
        if next != step {
            return Err(KeyError::NotNow { next });
        }
        match step {
            Step::Trust => keys.push(self.generate(NEXT)?),
            Step::Use => {
                keys.iter_mut().for_each(|key| key.state = OLD);
                keys.rotate_right(1);
                keys[0].state = IN_USE;
            }
            Step::Drop => {
                self.check_unneeded(pki, &keys, now, force)?;
                keys.truncate(1);
            }
        }
        self.write(pki, &keys)
    }

    fn check_unneeded(
        self,
        pki: &Path,
        keys: &[Section],
        now: SystemTime,
        force: bool,
    ) -> Result<(), KeyError> {
        let path = self.path(pki);
        if self == Self::Encryption {
            let done = files::read_if_there(&done_path(pki)).map_err(at(pki))?;
            if done.as_deref() == Some(&id(&keys[0].bytes)) {
                return Ok(());
            }
            let why = "the store may hold Secrets and history under the old key: start the API server, which writes them \
                       anew, and try again once its history is compacted (--etcd-compaction-interval)";
            return Err(KeyError::StillNeeded(why.into()));
        }
        let used_since = std::fs::metadata(&path)
            .and_then(|file| file.modified())
            .map_err(at(&path))?;
        let ends = read_ends(pki)?;
        let long = keys[1..].iter().filter_map(|key| ends.get(&id(&key.bytes)));
        let long = long
            .max()
            .map(|end| SystemTime::UNIX_EPOCH + Duration::from_secs(*end));
        let end = (used_since + TOKEN_LIFE).max(long.unwrap_or(used_since));
        let left = end.duration_since(now).unwrap_or_default();
        if force || left.is_zero() {
            return Ok(());
        }
        Err(KeyError::StillNeeded(format!(
            "tokens that the old key has signed may be in use for {} s more; wait, or --force",
            left.as_secs()
        )))
    }
}

fn next_step(keys: &[Section]) -> Step {
    match keys {
        [_] => Step::Trust,
        _ if keys.iter().any(|key| key.state == NEXT) => Step::Use,
        _ => Step::Drop,
    }
}

/// Until when tokens are good that were asked for a longer life than those of pods, by the key that signed them.
fn ends_path(pki: &Path) -> PathBuf {
    pki.join("sa.ends")
}

/// In seconds since 1970. A line that is none, which nobody wrote, counts for nothing.
fn read_ends(pki: &Path) -> Result<BTreeMap<String, u64>, KeyError> {
    let path = ends_path(pki);
    let text = files::read_if_there(&path)
        .map_err(at(&path))?
        .unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let read = lines.filter_map(|(key, end)| Some((key.to_owned(), end.parse().ok()?)));
    Ok(read.collect())
}

/// Remembers that a key signs a token that is good until `end`: until then it is still needed.
pub fn remember_end(pki: &Path, key: &str, end: u64, now: u64) -> Result<(), KeyError> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ends = read_ends(pki)?;
    if ends.get(key).is_some_and(|known| *known >= end) {
        return Ok(());
    }
    ends.retain(|_, end| *end > now);
    ends.insert(key.to_owned(), end.div_ceil(HOUR) * HOUR);
    let lines: String = ends.iter().map(|(key, end)| format!("{key} {end}\n")).collect();
    let path = ends_path(pki);
    files::replace(&path, lines.as_bytes(), files::SECRET).map_err(at(&path))
}

/// Where a server writes which key everything in the store is encrypted with.
pub fn done_path(pki: &Path) -> PathBuf {
    pki.join("encryption.done")
}

/// Takes back what [`done_path`] says: it is not known to be true of the store that is there now.
pub fn forget_done(pki: &Path) -> Result<(), KeyError> {
    let path = done_path(pki);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(&path)(error)),
        _ => Ok(()),
    }
}

/// A short name of a key, which tells nothing about it.
pub fn id(key: &[u8]) -> String {
    let hash = digest(&SHA256, key);
    hash.as_ref()[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Which files there are at some paths.
pub type Versions = Vec<Option<(u64, i64)>>;

/// Which files these are; a replaced one is another one.
pub fn versions<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Versions {
    let version = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.ino(), found.mtime_nsec()))
    };
    paths.into_iter().map(version).collect()
}

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> KeyError + '_ {
    move |source| KeyError::File {
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn three_steps_lead_from_one_key_to_the_next() {
        for ring in [Ring::Tokens, Ring::Encryption] {
            let dir = tempfile::tempdir().unwrap();
            let pki = dir.path();
            let first = ring.open(pki).unwrap();
            assert_eq!(ring.open(pki).unwrap(), first, "a key that is there is kept");
            let mode = std::fs::metadata(ring.path(pki)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let now = SystemTime::now();
            for (step, wrong) in [(Step::Trust, Step::Use), (Step::Use, Step::Drop)] {
                let refused = ring.take(pki, wrong, now, true).unwrap_err();
                assert_eq!(refused.to_string(), format!("the next step is `{step}`"));
                ring.take(pki, step, now, false).unwrap();
                assert_eq!(ring.open(pki).unwrap().len(), 2);
            }
            let keys = ring.open(pki).unwrap();
            assert_eq!(keys[1].bytes, first[0].bytes, "the old one is still believed");
            let refused = ring.take(pki, Step::Drop, now, false);
            assert!(matches!(refused, Err(KeyError::StillNeeded(_))), "{refused:?}");
            std::fs::write(done_path(pki), id(&keys[0].bytes)).unwrap();
            ring.take(pki, Step::Drop, now + 2 * TOKEN_LIFE, false).unwrap();
            assert_eq!(ring.open(pki).unwrap(), keys[..1]);
            assert_eq!(ring.status(pki).unwrap(), (1, Step::Trust), "and so on");
        }
    }

    #[test]
    fn a_key_is_kept_until_the_longest_token_that_it_signed_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (pki, ring, now) = (dir.path(), Ring::Tokens, SystemTime::now());
        let old = id(&ring.open(pki).unwrap()[0].bytes);
        for step in [Step::Trust, Step::Use] {
            ring.take(pki, step, now, false).unwrap();
        }
        let new = id(&ring.open(pki).unwrap()[0].bytes);
        let day = 24 * HOUR;
        let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        for (key, days) in [(&old, 2), (&old, 1), (&new, 9)] {
            remember_end(pki, key, seconds + days * day, seconds).unwrap();
        }
        let after = |hours: u64| now + Duration::from_secs(hours * HOUR);
        let refused = ring.take(pki, Step::Drop, after(47), false);
        assert!(matches!(refused, Err(KeyError::StillNeeded(_))), "{refused:?}");
        ring.take(pki, Step::Drop, after(50), false).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn keys_read_back_as_written_and_no_text_panics(
            keys in proptest::collection::vec((any::<Vec<u8>>(), 0..3usize), 0..4), text: String,
        ) {
            let keys: Vec<Section> = keys.into_iter().map(|(bytes, state)| {
                Section { label: "KEY".into(), bytes, state: [IN_USE, NEXT, OLD][state] }
            }).collect();
            let written: String = keys.iter().map(Section::text).collect();
            prop_assert_eq!(sections(&written), Ok(keys));
            let _ = sections(&format!("-----BEGIN {text}-----BEGIN A-----{text}-----END A-----"));
        }
    }
}
