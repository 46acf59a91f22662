//! What in the store cannot be read by whoever gets hold of its files?
//!
//! Values of Secrets are encrypted before they reach the store, whichever engine it is, and decrypted after they leave
//! it (AES-256-GCM). Everything above sees plain values, everything below, backups included, sees these:
//!
//! ```text
//! pointsman:enc:aesgcm:v1:KEYID:  nonce (12 bytes)  encrypted value  tag (16 bytes)
//! ```
//!
//! The key in the store is authenticated with the value: one that was changed, or put under another key, is not
//! accepted, and neither is a plain one: it is named in the log and left out. The first Secret tells at the start whether this server has the key that the
//! store was written with: without Secrets any key will do, as for a restored backup or a second server that has none.
//! [`keep`] writes values anew when another key is used.

use crate::auth::files;
use crate::auth::keyring::{self, KeyError, Ring, versions};
use crate::keys;
use bytes::Bytes;
use parking_lot::RwLock;
use pointsman_rules::kinds;
use pointsman_store::{
    Answer, Batch, Entry, Event, Expect, Op, Outcome, Page, Range, Revision, Store, StoreError, Transaction,
    Watch,
};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const MARK: &[u8] = b"pointsman:enc:aesgcm:v1:";
/// How often is looked whether keys were replaced.
const LOOK: Duration = Duration::from_secs(1);
const PAGE: usize = 500;

/// The keys, the one in use first.
pub struct Keys {
    pki: PathBuf,
    /// Which file they were read from; looked at before it was read.
    version: keyring::Versions,
    ring: RwLock<Arc<Vec<(String, LessSafeKey)>>>,
}

impl Keys {
    /// Reads the keys in `pki`; one is made if there is none.
    pub fn open(pki: &Path) -> Result<Self, KeyError> {
        Ring::Encryption.open(pki)?;
        let version = versions([Ring::Encryption.path(pki).as_path()]);
        let ring = read(pki)?;
        Ok(Self {
            pki: pki.into(),
            version,
            ring: RwLock::new(Arc::new(ring)),
        })
    }

    /// The name of the key in use.
    fn used(&self) -> String {
        self.ring
            .read()
            .first()
            .map(|(id, _)| id.clone())
            .unwrap_or_default()
    }

    /// Whether a value is encrypted with a key that is not here.
    fn lacks_key_of(&self, value: &[u8]) -> bool {
        let named = split(value).map(|(id, _)| id);
        named.is_some_and(|id| !self.ring.read().iter().any(|(known, _)| known == id))
    }

    fn seal(&self, key: &str, value: &[u8]) -> Result<Bytes, StoreError> {
        let failed = || StoreError::Invalid(format!("{key} cannot be encrypted"));
        let ring = self.ring.read().clone();
        let (id, secret) = ring.first().ok_or_else(failed)?;
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| failed())?;
        let mut sealed = value.to_vec();
        let about = Aad::from(key.as_bytes());
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        secret
            .seal_in_place_append_tag(nonce_used, about, &mut sealed)
            .map_err(|_| failed())?;
        Ok([MARK, id.as_bytes(), b":", &nonce, &sealed].concat().into())
    }

    fn open_value(&self, key: &str, value: &[u8]) -> Result<Bytes, StoreError> {
        let sealed = |problem: &str| StoreError::Sealed(format!("{key}: {problem}"));
        let (id, rest) = split(value)
            .ok_or_else(|| sealed("it is not encrypted, and was not written by an API server"))?;
        let ring = self.ring.read().clone();
        let found = ring.iter().find(|(known, _)| known == id);
        let (_, secret) = found.ok_or_else(|| {
            let file = Ring::Encryption.path(&self.pki);
            sealed(&format!(
                "it is encrypted with key {id}, which is not in {}",
                file.display()
            ))
        })?;
        let changed = || sealed("it was changed since it was written, or moved here from another key");
        let (nonce, rest) = rest.split_at_checked(NONCE_LEN).ok_or_else(changed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| changed())?;
        let mut plain = rest.to_vec();
        let opened = secret.open_in_place(nonce, Aad::from(key.as_bytes()), &mut plain);
        let length = opened.map_err(|_| changed())?.len();
        plain.truncate(length);
        Ok(plain.into())
    }
}

fn read(pki: &Path) -> Result<Vec<(String, LessSafeKey)>, KeyError> {
    let sections = Ring::Encryption.open(pki)?;
    let keys = sections.iter().filter_map(|section| {
        let key = UnboundKey::new(&AES_256_GCM, &section.bytes).ok()?;
        Some((keyring::id(&section.bytes), LessSafeKey::new(key)))
    });
    Ok(keys.collect())
}

/// The name of the key that a value is encrypted with, and what follows.
fn split(value: &[u8]) -> Option<(&str, &[u8])> {
    let rest = value.strip_prefix(MARK)?;
    let end = rest.iter().take(64).position(|byte| *byte == b':')?;
    Some((std::str::from_utf8(&rest[..end]).ok()?, &rest[end + 1..]))
}

/// A store whose Secrets are encrypted below.
#[derive(Clone)]
pub struct EncryptedStore {
    /// What is really stored, for backups.
    pub raw: Arc<dyn Store>,
    keys: Arc<Keys>,
    secrets: Arc<str>,
}

impl EncryptedStore {
    /// Encrypts what goes into `raw`. Fails if this server does not have the key that it was written with.
    pub async fn new(raw: Arc<dyn Store>, keys: Keys) -> Result<Self, StoreError> {
        let store = Self {
            raw,
            keys: Arc::new(keys),
            secrets: keys::collection(&kinds::SECRET).into(),
        };
        store.range(first(&store.secrets, None)).await?;
        Ok(store)
    }

    fn covers(&self, key: &str) -> bool {
        key.starts_with(&*self.secrets)
    }

    /// Decrypts an entry. Fails only where this server lacks a key, which somebody has to bring.
    fn opened(&self, entry: &mut Entry) -> Result<(), StoreError> {
        if !self.covers(&entry.key) {
            return Ok(());
        }
        match self.keys.open_value(&entry.key, &entry.value) {
            Err(error) if self.keys.lacks_key_of(&entry.value) => return Err(error),
            opened => entry.value = or_nothing(opened),
        }
        Ok(())
    }
}

/// One bad record costs itself; whoever reads the rest goes on. Nothing is no object: what was planted is not either.
fn or_nothing(opened: Result<Bytes, StoreError>) -> Bytes {
    opened.unwrap_or_else(|error| {
        tracing::error!(%error, "a stored Secret cannot be decrypted, and is not served");
        Bytes::new()
    })
}

fn first(prefix: &str, at: Option<Revision>) -> Range {
    Range {
        prefix: prefix.into(),
        after: None,
        limit: 1,
        at,
    }
}

impl Store for EncryptedStore {
    fn revision(&self) -> Answer<'_, Revision> {
        self.raw.revision()
    }

    fn range(&self, range: Range) -> Answer<'_, Page> {
        Box::pin(async move {
            let mut page = self.raw.range(range).await?;
            for entry in &mut page.entries {
                self.opened(entry)?;
            }
            Ok(page)
        })
    }

    fn commit(&self, mut transaction: Transaction) -> Answer<'_, Outcome> {
        Box::pin(async move {
            for op in &mut transaction.ops {
                if let Op::Put(key, value) = op
                    && self.covers(key)
                {
                    *value = self.keys.seal(key, value)?;
                }
            }
            let mut outcome = self.raw.commit(transaction).await?;
            if let Outcome::Refused(failed) = &mut outcome {
                for entry in failed.iter_mut().filter_map(|(_, entry)| entry.as_mut()) {
                    self.opened(entry)?;
                }
            }
            Ok(outcome)
        })
    }

    fn watch(&self, prefix: String, from: Revision) -> Answer<'_, Box<dyn Watch>> {
        Box::pin(async move {
            let raw = self.raw.watch(prefix, from).await?;
            let store = self.clone();
            Ok(Box::new(DecryptedWatch { raw, store }) as Box<dyn Watch>)
        })
    }

    fn request_progress(&self) -> Answer<'_, ()> {
        self.raw.request_progress()
    }

    fn own_backup(&self) -> Option<&'static str> {
        self.raw.own_backup()
    }

    fn compact(&self, revision: Revision) -> Answer<'_, ()> {
        self.raw.compact(revision)
    }
}

struct DecryptedWatch {
    raw: Box<dyn Watch>,
    store: EncryptedStore,
}

impl Watch for DecryptedWatch {
    fn next(&mut self) -> Answer<'_, Batch> {
        Box::pin(async move {
            let mut batch = self.raw.next().await?;
            for event in &mut batch.events {
                if !self.store.covers(event.key()) {
                    continue;
                }
                let key = event.key().clone();
                let open = |value: &mut Bytes| *value = or_nothing(self.store.keys.open_value(&key, value));
                match event {
                    Event::Put { entry, .. } => open(&mut entry.value),
                    Event::Delete { previous, .. } => open(previous),
                }
            }
            Ok(batch)
        })
    }
}

/// Takes up keys that were replaced, and writes everything anew that is encrypted with another than the one in use. When
/// neither the present nor the history needs another one, `encryption.done` says so. What was said about the store of
/// an earlier start is not believed: this one may have been restored from a backup. Works for ever.
pub async fn keep(store: EncryptedStore) {
    let (keys, path) = (&store.keys, Ring::Encryption.path(&store.keys.pki));
    let mut seen = keys.version.clone();
    let mut done = None;
    if let Err(error) = keyring::forget_done(&keys.pki) {
        let error: &dyn std::error::Error = &error;
        tracing::error!(error, "do not drop a key that encrypts Secrets now");
    }
    let mut clean = None;
    loop {
        let found = versions([path.as_path()]);
        if found != seen {
            match read(&keys.pki) {
                Ok(ring) => {
                    *keys.ring.write() = Arc::new(ring);
                    tracing::info!(used = keys.used(), "the keys that encrypt Secrets were changed");
                    (seen, clean) = (found, None);
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(
                        error,
                        "cannot read the keys that encrypt Secrets; the present ones stay in use"
                    );
                }
            }
        }
        let used = keys.used();
        if done.as_ref() != Some(&used) {
            match store.settle(&used, &mut clean).await {
                Ok(true) => {
                    let written =
                        files::replace(&keyring::done_path(&keys.pki), used.as_bytes(), files::SECRET);
                    match written {
                        Ok(()) => done = Some(used),
                        Err(error) => tracing::warn!(%error, "cannot write encryption.done yet"),
                    }
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "cannot encrypt all Secrets with the key in use yet"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

impl EncryptedStore {
    /// Writes anew what another key than `used` encrypts; returns whether nothing is left, history included. `clean` is
    /// the revision from which on nothing was.
    async fn settle(&self, used: &str, clean: &mut Option<Revision>) -> Result<bool, StoreError> {
        if let Some(clean) = clean {
            // Everything before it needs other keys. In a store that never was older there is nothing before.
            let before = Revision(clean.0.saturating_sub(1));
            match self.raw.range(first(&self.secrets, Some(before))).await {
                // A write that was under way when the key changed may have come later.
                Err(StoreError::Compacted { .. }) => {}
                Ok(_) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        let (rewritten, at) = self.rewrite_all(used).await?;
        if rewritten == 0 {
            return Ok(clean.replace(at).is_some());
        }
        tracing::info!(rewritten, used, "wrote records anew with the key in use");
        *clean = None;
        Ok(false)
    }

    /// Writes anew what another key than `used` encrypts; returns how much that was, and until when it was looked at.
    async fn rewrite_all(&self, used: &str) -> Result<(usize, Revision), StoreError> {
        let mut rewritten = 0;
        let mut after = None;
        loop {
            let range = Range {
                prefix: self.secrets.to_string(),
                after,
                limit: PAGE,
                at: None,
            };
            let page = self.raw.range(range).await?;
            for entry in &page.entries {
                if split(&entry.value).is_none_or(|(id, _)| id != used) {
                    self.rewrite(entry).await?;
                    rewritten += 1;
                }
            }
            after = page.entries.last().map(|entry| entry.key.to_string());
            if page.remaining == 0 {
                return Ok((rewritten, page.at));
            }
        }
    }

    async fn rewrite(&self, entry: &Entry) -> Result<(), StoreError> {
        let plain = self.keys.open_value(&entry.key, &entry.value)?;
        let transaction = Transaction {
            expect: vec![(entry.key.clone(), Expect::Revision(entry.revision))],
            ops: vec![Op::Put(entry.key.clone(), plain)],
        };
        self.commit(transaction).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::keyring::Step;
    use pointsman_store::embedded::{EmbeddedStore, Options};
    use std::time::SystemTime;

    const NAME: &str = "/registry/core/secrets/d/s";

    async fn open(dir: &Path) -> Result<EncryptedStore, StoreError> {
        let raw = EmbeddedStore::open(&dir.join("store"), Options::default()).unwrap();
        EncryptedStore::new(Arc::new(raw), Keys::open(&dir.join("pki")).unwrap()).await
    }

    async fn put(store: &dyn Store, key: &str, value: &'static [u8]) -> Revision {
        let transaction = Transaction {
            expect: Vec::new(),
            ops: vec![Op::Put(key.into(), Bytes::from_static(value))],
        };
        match store.commit(transaction).await.unwrap() {
            Outcome::Committed(revision) => revision,
            refused => panic!("{refused:?}"),
        }
    }

    async fn value(store: &dyn Store, key: &str) -> Result<Bytes, StoreError> {
        let page = store.range(first(key, None)).await?;
        Ok(page.entries[0].value.clone())
    }

    #[tokio::test]
    async fn secrets_are_encrypted_below_and_plain_above() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await.unwrap();
        let mut watch = store
            .watch("/".into(), store.revision().await.unwrap())
            .await
            .unwrap();
        put(&store, NAME, b"hunter2").await;
        put(&store, "/registry/core/configmaps/d/m", b"plain").await;
        assert_eq!(value(&store, NAME).await.unwrap(), "hunter2");
        let seen = watch.next().await.unwrap();
        assert!(matches!(&seen.events[0], Event::Put { entry, .. } if entry.value == "hunter2"));
        let raw = value(&*store.raw, NAME).await.unwrap();
        assert!(!raw.windows(7).any(|part| part == b"hunter2") && raw.starts_with(MARK));
        assert_eq!(
            value(&*store.raw, "/registry/core/configmaps/d/m").await.unwrap(),
            "plain"
        );
        assert_ne!(
            store.keys.seal(NAME, b"x").unwrap(),
            store.keys.seal(NAME, b"x").unwrap()
        );
        let refused = Transaction {
            expect: vec![(NAME.into(), Expect::Absent)],
            ops: vec![],
        };
        let Outcome::Refused(failed) = store.commit(refused).await.unwrap() else {
            panic!("the key is there")
        };
        assert_eq!(failed[0].1.as_ref().unwrap().value, "hunter2");
    }

    #[tokio::test]
    async fn what_was_changed_moved_or_planted_is_named_and_not_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).await.unwrap();
        let sealed = store.keys.seal(NAME, b"hunter2").unwrap();
        let problem = |key: &str, value: &[u8]| store.keys.open_value(key, value).unwrap_err().to_string();
        for at in MARK.len() + 9..sealed.len() {
            let mut changed = sealed.to_vec();
            changed[at] ^= 1;
            assert!(
                problem(NAME, &changed).contains("/d/s: it was changed"),
                "byte {at}"
            );
        }
        assert!(problem("/registry/core/secrets/d/other", &sealed).contains("or moved here"));
        assert!(problem(NAME, &sealed[..MARK.len() + 12]).contains("was changed"));
        assert!(problem(NAME, b"{\"kind\":\"Secret\"}").contains("not encrypted"));
        let mut unknown = sealed.to_vec();
        unknown[MARK.len()..MARK.len() + 8].copy_from_slice(b"00000000");
        assert!(problem(NAME, &unknown).contains("encrypted with key 00000000, which is not in"));
    }

    #[tokio::test]
    async fn a_server_without_the_stores_key_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        put(&open(dir.path()).await.unwrap(), NAME, b"hunter2").await;
        std::fs::rename(dir.path().join("pki/encryption.key"), dir.path().join("kept")).unwrap();
        let refused = open(dir.path()).await.err().unwrap().to_string();
        assert!(refused.contains("/d/s: it is encrypted with key"), "{refused}");
        std::fs::rename(dir.path().join("kept"), dir.path().join("pki/encryption.key")).unwrap();
        open(dir.path()).await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_decrypted_costs_itself_and_a_plain_value_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let secret = |name: &str| {
            let stored =
                crate::stored::encode(&kinds::SECRET, &serde_json::json!({"metadata": {"name": name}}));
            (format!("/registry/core/secrets/d/{name}"), stored)
        };
        let write = async |store: &dyn Store, (key, value): (String, Bytes)| {
            let ops = vec![Op::Put(key.into(), value)];
            let expect = Vec::new();
            store.commit(Transaction { expect, ops }).await.unwrap();
        };
        let store = open(dir.path()).await.unwrap();
        for name in ["a", "b", "c"] {
            write(&store, secret(name)).await;
        }
        let mut changed = value(&*store.raw, &secret("a").0).await.unwrap().to_vec();
        *changed.last_mut().unwrap() ^= 1;
        write(&*store.raw, (secret("a").0, changed.into())).await;
        write(&*store.raw, secret("b")).await;
        store.compact(store.revision().await.unwrap()).await.unwrap();
        drop(store);
        let store = open(dir.path()).await.unwrap();
        let cache = Arc::new(crate::cache::Cache::new(Default::default(), Vec::new()));
        let shared: Arc<dyn Store> = Arc::new(store.clone());
        let following = tokio::spawn(cache.start(shared).await.unwrap());
        // The watch leaves out what comes later, too.
        write(&*store.raw, secret("later")).await;
        write(&store, secret("d")).await;
        let newest = store.revision().await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), cache.wait_for(newest))
            .await
            .unwrap();
        let found = cache.of(&kinds::SECRET).list("", None, Revision(0)).objects;
        let names: Vec<&str> = found.iter().map(|object| object.name()).collect();
        assert_eq!(names, ["c", "d"]);
        following.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_said_of_another_store_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let step = |step| Ring::Encryption.take(&pki, step, SystemTime::now(), false);
        let store = open(dir.path()).await.unwrap();
        put(&store, NAME, b"hunter2").await;
        drop(store);
        step(Step::Trust).unwrap();
        step(Step::Use).unwrap();
        // The store that this was said of has been replaced by the one with the old key.
        let store = open(dir.path()).await.unwrap();
        let (old, used) = (store.keys.ring.read()[1].0.clone(), store.keys.used());
        std::fs::write(keyring::done_path(&pki), &used).unwrap();
        let keeping = tokio::spawn(keep(store.clone()));
        let mut looks = 0;
        while split(&value(&*store.raw, NAME).await.unwrap()).unwrap().0 == old {
            tokio::time::sleep(LOOK).await;
            looks += 1;
            assert!(looks < 2000, "it is written anew");
        }
        assert!(step(Step::Drop).is_err(), "history needs the old key");
        keeping.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn another_key_takes_over_and_the_old_one_goes_when_nothing_needs_it() {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        let step = |step| Ring::Encryption.take(&pki, step, SystemTime::now(), false);
        let store = open(dir.path()).await.unwrap();
        put(&store, NAME, b"hunter2").await;
        let old = store.keys.used();
        let keeping = tokio::spawn(keep(store.clone()));
        step(Step::Trust).unwrap();
        step(Step::Use).unwrap();
        while split(&value(&*store.raw, NAME).await.unwrap()).unwrap().0 == old {
            tokio::time::sleep(LOOK).await;
        }
        assert_eq!(value(&store, NAME).await.unwrap(), "hunter2");
        assert!(step(Step::Drop).is_err(), "history needs the old key");
        while step(Step::Drop).is_err() {
            tokio::time::sleep(LOOK).await;
            let newest = put(&store, "/registry/x", b"").await;
            store.compact(newest).await.unwrap();
        }
        // The server reads the new file within a second, and nothing is lost.
        while store.keys.ring.read().len() > 1 {
            tokio::time::sleep(LOOK).await;
        }
        assert_eq!(value(&store, NAME).await.unwrap(), "hunter2");
        keeping.abort();
    }
}
