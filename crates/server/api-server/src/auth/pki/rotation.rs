//! How is the authority replaced while both the old one and the new one are believed?
//!
//! `ca.crt` holds every certificate that is trusted, and `ca.key` the key that signs: which certificate of the bundle it
//! belongs to says where a rotation stands. Each step is one replaced file, so that a crash leaves the state before
//! or after it:
//!
//! | step  | trusted  | signs | what is replaced |
//! |-------|----------|-------|------------------|
//! |       | old      | old   |                  |
//! | trust | old, new | old   | `ca.crt`         |
//! | issue | old, new | new   | `ca.key`         |
//! | drop  | new      | new   | `ca.crt`         |
//!
//! Between them everybody has to catch up: before `issue` they must trust the new authority, before `drop` they must
//! have certificates of it.

use super::{Authority, CA_LIFE, Facts, PkiError, at, authority_params, set_life};
use crate::auth::files;
use rcgen::KeyPair;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The next authority's key, from `trust` until `issue`.
const NEXT_KEY: &str = "ca-next.key";

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new authority is made, and trusted beside the present one.
    Trust,
    /// Certificates are issued by the new one from now on.
    Issue,
    /// The old one is no longer trusted.
    Drop,
}

impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Trust => "trust",
            Self::Issue => "issue",
            Self::Drop => "drop",
        })
    }
}

/// Why a step is not taken. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The steps have an order.
    #[error("the next step is `{next}`")]
    NotNow { next: Step },
    /// Whoever shows these would be locked out.
    #[error(
        "still of the old authority: {}; a running API server replaces its own within seconds, a stopped one at its next start; \
         remove the files of clients that are no more",
        list(.0)
    )]
    StillInUse(Vec<PathBuf>),
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    shown.join(", ")
}

/// One trusted authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    pub name: String,
    pub until: jiff::Timestamp,
    pub signs: bool,
}

/// Where a rotation stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub trusted: Vec<Trusted>,
    pub next: Step,
}

/// Where the rotation of the authority in `dir` stands.
pub fn status(dir: &Path) -> Result<Rotation, PkiError> {
    let authority = Authority::read(dir)?.ok_or_else(|| PkiError::Authority {
        path: dir.join("ca.crt"),
        problem: "there is none; the API server makes one at its first start".into(),
    })?;
    let trusted = authority
        .bundle
        .iter()
        .enumerate()
        .map(|(at, (_, facts))| Trusted {
            name: facts.common_name.clone().unwrap_or_default(),
            until: jiff::Timestamp::from_second(facts.not_after).unwrap_or(jiff::Timestamp::MAX),
            signs: at == authority.signer,
        });
    Ok(Rotation {
        trusted: trusted.collect(),
        next: authority.next_step(),
    })
}

/// Takes a step.
pub fn take(dir: &Path, step: Step, now: SystemTime) -> Result<(), RotationError> {
    let next = status(dir)?.next;
    if next != step {
        return Err(RotationError::NotNow { next });
    }
    let authority = Authority::read(dir)?.expect("its status was read");
    match step {
        Step::Trust => trust(dir, &authority, now)?,
        Step::Issue => issue(dir, &authority)?,
        Step::Drop => drop_old(dir, &authority)?,
    }
    Ok(())
}

fn trust(dir: &Path, authority: &Authority, now: SystemTime) -> Result<(), PkiError> {
    // The authorities have names of their own: not every verifier tells two of one name apart by their keys.
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut params = authority_params(&format!("pointsman-ca@{seconds}"));
    set_life(&mut params, now, CA_LIFE);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    // Without its certificate the key is of no use, and the next attempt replaces it.
    let key_path = dir.join(NEXT_KEY);
    files::replace(&key_path, key.serialize_pem().as_bytes(), files::SECRET).map_err(at(&key_path))?;
    let bundle = format!("{}{certificate}", authority.pem());
    write_bundle(dir, &bundle)
}

fn issue(dir: &Path, authority: &Authority) -> Result<(), PkiError> {
    let next_path = dir.join(NEXT_KEY);
    let unusable = |problem: &str| PkiError::Authority {
        path: next_path.clone(),
        problem: problem.into(),
    };
    let pem = files::read_if_there(&next_path).map_err(at(&next_path))?;
    let pem = pem.ok_or_else(|| unusable("the key of the new authority is missing"))?;
    let key = KeyPair::from_pem(&pem).map_err(|_| unusable("not a private key"))?;
    let newest = authority
        .bundle
        .last()
        .map(|(_, facts)| facts.public_key.as_slice());
    if newest != Some(key.public_key_raw()) {
        return Err(unusable("does not belong to the last certificate of ca.crt"));
    }
    let key_path = dir.join("ca.key");
    files::replace(&key_path, pem.as_bytes(), files::SECRET).map_err(at(&key_path))?;
    let _ = std::fs::remove_file(&next_path);
    Ok(())
}

fn drop_old(dir: &Path, authority: &Authority) -> Result<(), RotationError> {
    let (signer, facts) = &authority.bundle[authority.signer];
    let old = leaves_of_others(dir, facts)?;
    if !old.is_empty() {
        return Err(RotationError::StillInUse(old));
    }
    // A crash after `issue` may have left it.
    let _ = std::fs::remove_file(dir.join(NEXT_KEY));
    Ok(write_bundle(dir, signer)?)
}

fn write_bundle(dir: &Path, bundle: &str) -> Result<(), PkiError> {
    let path = dir.join("ca.crt");
    files::replace(&path, bundle.as_bytes(), files::PUBLIC).map_err(at(&path))
}

/// Certificates in `dir` that another authority has issued.
fn leaves_of_others(dir: &Path, signer: &Facts) -> Result<Vec<PathBuf>, PkiError> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(at(dir))? {
        let path = entry.map_err(at(dir))?.path();
        if path.extension().is_none_or(|ending| ending != "crt") || path.ends_with("ca.crt") {
            continue;
        }
        let pem = files::read_if_there(&path)
            .map_err(at(&path))?
            .unwrap_or_default();
        if Facts::read(&pem).is_some_and(|facts| facts.authority_key_id != signer.subject_key_id) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::{Identity, Pki, ServingNames};
    use super::*;
    use std::time::Duration;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn files_in(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    }

    fn issuer(pem: &str) -> Option<Vec<u8>> {
        Facts::read(pem).unwrap().authority_key_id
    }

    #[test]
    fn three_steps_lead_from_one_authority_to_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let old = Pki::open(dir, now()).unwrap();
        let first = old.client("admin", &Identity::admin(), now()).unwrap();
        assert_eq!(status(dir).unwrap().next, Step::Trust);

        take(dir, Step::Trust, now()).unwrap();
        let both = Pki::open(dir, now()).unwrap();
        assert!(both.ca_pem().starts_with(old.ca_pem()) && both.ca_pem() != old.ca_pem());
        let same = both.client("admin", &Identity::admin(), now()).unwrap();
        assert_eq!(same, first, "the old one still signs");

        take(dir, Step::Issue, now()).unwrap();
        let new = Pki::open(dir, now()).unwrap();
        assert_eq!(new.ca_pem(), both.ca_pem(), "both are trusted");
        let refused = take(dir, Step::Drop, now());
        assert!(
            matches!(refused, Err(RotationError::StillInUse(_))),
            "{refused:?}"
        );
        let second = new.client("admin", &Identity::admin(), now()).unwrap();
        assert_ne!(issuer(&second.certificate_pem), issuer(&first.certificate_pem));

        take(dir, Step::Drop, now()).unwrap();
        let last = Pki::open(dir, now()).unwrap();
        assert!(new.ca_pem().ends_with(last.ca_pem()) && last.ca_pem() != new.ca_pem());
        assert_eq!(last.client("admin", &Identity::admin(), now()).unwrap(), second);
        assert_eq!(status(dir).unwrap().next, Step::Trust, "and so on");
        assert!(!dir.join(NEXT_KEY).exists());
    }

    #[test]
    fn steps_out_of_order_are_refused_and_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        Pki::open(dir, now()).unwrap();
        for (next, wrong) in [
            (Step::Trust, [Step::Issue, Step::Drop]),
            (Step::Issue, [Step::Trust, Step::Drop]),
            (Step::Drop, [Step::Trust, Step::Issue]),
        ] {
            let before = files_in(dir);
            for wrong in wrong {
                let refused = take(dir, wrong, now()).unwrap_err();
                assert_eq!(refused.to_string(), format!("the next step is `{next}`"));
            }
            assert_eq!(files_in(dir), before);
            take(dir, next, now()).unwrap();
        }
    }

    #[test]
    fn whatever_a_crash_leaves_the_authority_is_usable_and_the_step_can_be_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let pki = Pki::open(dir, now()).unwrap();
        pki.serving(&ServingNames::default(), now()).unwrap();
        // What a step changes last is what a crash in the middle of it leaves as it was.
        for (step, last) in [
            (Step::Trust, "ca.crt"),
            (Step::Issue, NEXT_KEY),
            (Step::Drop, "ca.crt"),
        ] {
            let (before, last) = (files_in(dir), dir.join(last));
            take(dir, step, now()).unwrap();
            let after = files_in(dir);
            let (_, unchanged) = before
                .iter()
                .find(|(path, _)| *path == last)
                .expect("it was there");
            std::fs::write(&last, unchanged).unwrap();
            let next = status(dir).unwrap().next;
            Pki::open(dir, now())
                .unwrap()
                .serving(&ServingNames::default(), now())
                .unwrap();
            take(dir, next, now()).unwrap_or_else(|error| panic!("{step}: {error}"));
            Pki::open(dir, now()).unwrap();
            restore(dir, &after);
            Pki::open(dir, now())
                .unwrap()
                .serving(&ServingNames::default(), now())
                .unwrap();
        }
    }

    fn restore(dir: &Path, files: &[(PathBuf, Vec<u8>)]) {
        for (path, _) in files_in(dir) {
            std::fs::remove_file(path).unwrap();
        }
        for (path, content) in files {
            std::fs::write(path, content).unwrap();
        }
    }
}
