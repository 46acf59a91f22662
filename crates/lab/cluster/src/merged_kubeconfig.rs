//! How does the cluster get into the kubeconfig that `kubectl` reads by itself, and out of it again?
//!
//! As `kind` does it: an entry of each list by the name `pointsman-NAME`, which becomes the current context; at the end all
//! three go, and the current context with them if it is still this one. Everything else in the file stays, its comments
//! aside.

use crate::claim::Record;
use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long another program may hold the file.
const PATIENCE: Duration = Duration::from_secs(5);

/// The file that `kubectl` writes to: the first of `$KUBECONFIG`, else `~/.kube/config`.
pub fn usual_file() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let first = std::env::split_paths(&named).find(|path| !path.as_os_str().is_empty());
    if let Some(path) = first {
        return Ok(crate::up::absolute(&path));
    }
    let home = std::env::home_dir()
        .context("--merge-kubeconfig: there is no home directory, and $KUBECONFIG is not set")?;
    Ok(home.join(".kube/config"))
}

/// The name of the context.
pub(crate) fn context_name(cluster: &str) -> String {
    format!("pointsman-{cluster}")
}

/// Puts the cluster whose administrator has the kubeconfig `own` into `file`.
pub(crate) fn merge(file: &Path, cluster: &str, own: &Path) -> anyhow::Result<()> {
    let own = read(own)?.context("the cluster has no kubeconfig")?;
    rewrite(file, |config| add(config, &context_name(cluster), &own))
}

/// Takes a cluster out of the file that it was merged into, if it was.
pub(crate) fn forget(record: &Record) -> anyhow::Result<()> {
    match &record.merged {
        Some(file) => remove(file, &record.name),
        None => Ok(()),
    }
}

/// Takes the cluster out of `file`. One that is not there, or a file, is no failure.
fn remove(file: &Path, cluster: &str) -> anyhow::Result<()> {
    if !file.exists() {
        return Ok(());
    }
    rewrite(file, |config| {
        take_out(config, &context_name(cluster));
        Ok(())
    })
}

/// The lists of a kubeconfig, with the field that holds an entry's content.
const LISTS: [(&str, &str); 3] = [
    ("clusters", "cluster"),
    ("users", "user"),
    ("contexts", "context"),
];

fn add(config: &mut Map<String, Value>, name: &str, own: &Value) -> anyhow::Result<()> {
    take_out(config, name);
    for (list, field) in LISTS {
        let content = match field {
            "context" => json!({ "cluster": name, "user": name }),
            _ => own[list][0][field].clone(),
        };
        let entries = config.entry(list).or_insert(Value::Null);
        if entries.is_null() {
            *entries = json!([]);
        }
        let Some(entries) = entries.as_array_mut() else {
            bail!("{list:?} is not a list");
        };
        entries.push(json!({ "name": name, field: content }));
    }
    config.insert("current-context".into(), name.into());
    config.entry("apiVersion").or_insert("v1".into());
    config.entry("kind").or_insert("Config".into());
    Ok(())
}

fn take_out(config: &mut Map<String, Value>, name: &str) {
    for (list, _) in LISTS {
        if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| entry["name"] != name);
        }
    }
    if config
        .get("current-context")
        .is_some_and(|current| current == name)
    {
        config.insert("current-context".into(), "".into());
    }
}

/// Changes a kubeconfig while no other program does, as kubectl's lock says it.
fn rewrite(
    file: &Path,
    change: impl FnOnce(&mut Map<String, Value>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Somebody may keep the file elsewhere behind a link.
    let file = &file.canonicalize().unwrap_or_else(|_| file.to_owned());
    if let Some(directory) = file.parent() {
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        made.with_context(|| format!("making {}", directory.display()))?;
    }
    let _lock = Lock::take(file)?;
    let mut config = read(file)?.unwrap_or_else(|| json!({}));
    let Some(fields) = config.as_object_mut() else {
        bail!("{} is not a kubeconfig", file.display());
    };
    change(fields).with_context(|| format!("changing {}", file.display()))?;
    let text = serde_saphyr::to_string(&config).with_context(|| format!("writing {}", file.display()))?;
    write(file, &text).with_context(|| format!("writing {}", file.display()))
}

/// The content of a kubeconfig; none if there is no file, or nothing in it.
fn read(file: &Path) -> anyhow::Result<Option<Value>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let value = serde_saphyr::from_str(&text).with_context(|| format!("reading {}", file.display()))?;
    Ok(Some(value))
}

/// Replaces the file whole; it holds keys.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".pointsman-new");
    let draft = file.with_file_name(name);
    let mut open = File::options();
    open.create(true).write(true).truncate(true).mode(0o600);
    let mut new = open.open(&draft)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(&draft, file)
}

/// A file beside the kubeconfig that kubectl and others respect.
struct Lock(PathBuf);

impl Lock {
    fn take(file: &Path) -> anyhow::Result<Self> {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let path = file.with_file_name(name);
        let started = Instant::now();
        loop {
            match File::options()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&path)
            {
                Ok(_) => return Ok(Self(path)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists && started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => {
                    let what = || {
                        format!(
                            "locking {} (if no program uses it, remove {})",
                            file.display(),
                            path.display()
                        )
                    };
                    return Err(error).with_context(what);
                }
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const OTHERS: &str = "apiVersion: v1\nkind: Config\ncurrent-context: work\npreferences: {colors: true}\n\
        clusters: [{name: work, cluster: {server: 'https://work'}}]\n\
        users: [{name: me, user: {token: '007'}}]\n\
        contexts: [{name: work, context: {cluster: work, user: me}}]\n";
    const OWN: &str = "clusters: [{name: p, cluster: {server: 'https://p'}}]\nusers: [{name: a, user: {client-key-data: aw==}}]\n";

    fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let (file, own) = (directory.path().join("kube/config"), directory.path().join("own"));
        fs::write(&own, OWN).unwrap();
        (directory, file, own)
    }

    #[test]
    fn a_cluster_comes_and_goes_and_everything_else_stays() {
        let (_directory, file, own) = files();
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(&file, OTHERS).unwrap();
        let before = read(&file).unwrap().unwrap();
        for _ in 0..2 {
            merge(&file, "x", &own).unwrap();
        }
        let merged = read(&file).unwrap().unwrap();
        assert_eq!(merged["current-context"], "pointsman-x");
        assert_eq!(
            merged["clusters"].as_array().unwrap().len(),
            2,
            "once, however often it is merged"
        );
        assert_eq!(
            merged["users"][1],
            json!({ "name": "pointsman-x", "user": { "client-key-data": "aw==" } })
        );
        assert_eq!(
            merged["users"][0], before["users"][0],
            "a token of digits stays text"
        );
        remove(&file, "x").unwrap();
        let mut after = read(&file).unwrap().unwrap();
        assert_eq!(after["current-context"], "");
        after["current-context"] = "work".into();
        assert_eq!(after, before);
        // Another context that somebody chose meanwhile stays chosen.
        merge(&file, "x", &own).unwrap();
        rewrite(&file, |config| {
            config.insert("current-context".into(), "work".into());
            Ok(())
        })
        .unwrap();
        remove(&file, "x").unwrap();
        assert_eq!(read(&file).unwrap().unwrap(), before);
    }

    #[test]
    fn a_new_file_is_for_its_owner_only_and_a_bad_one_is_left_alone() {
        let (_directory, file, own) = files();
        remove(&file, "x").unwrap();
        assert!(!file.exists());
        merge(&file, "x", &own).unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(file.parent().unwrap()).unwrap().count(),
            1,
            "no lock, no draft"
        );
        for bad in ["[]", "clusters: 3", "a: [b"] {
            fs::write(&file, bad).unwrap();
            let error = format!("{:#}", merge(&file, "x", &own).unwrap_err());
            assert!(error.contains("config"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), bad);
        }
    }
}
