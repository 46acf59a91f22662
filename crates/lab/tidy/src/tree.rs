//! Which files are there, and which crates do they make?

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use crate::manifest::Manifest;

/// The texts of a repository by their paths from its root, with `/` between names.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

/// What is made by building and running, at the root of the repository.
const MADE: &[&str] = &[".git", ".tools", "data", "dist", "target"];

impl Tree {
    /// Reads everything below `root` that is text.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        for entry in fs::read_dir(root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !MADE.contains(&name.as_str()) {
                tree.add(&entry.path(), name)?;
            }
        }
        Ok(tree)
    }

    fn add(&mut self, path: &Path, name: String) -> io::Result<()> {
        if path.is_dir() {
            for entry in fs::read_dir(path)? {
                let entry = entry?;
                let below = format!("{name}/{}", entry.file_name().to_string_lossy());
                self.add(&entry.path(), below)?;
            }
        } else {
            match String::from_utf8(fs::read(path)?) {
                Ok(text) => _ = self.files.insert(name, text),
                // Pictures have a place but no lines.
                Err(_) => _ = self.files.insert(name, String::new()),
            }
        }
        Ok(())
    }

    /// A tree in a few lines, for tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        Self {
            files: files.collect(),
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(|(path, _)| path.ends_with(".rs"))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether a file or directory is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = format!("{path}/");
        self.files.contains_key(path)
            || self
                .files
                .range(below.clone()..)
                .next()
                .is_some_and(|(found, _)| found.starts_with(&below))
    }

    /// The packages of the workspace.
    pub(crate) fn crates(&self) -> impl Iterator<Item = Crate<'_>> {
        self.files().filter_map(|(path, text)| {
            let directory = path.strip_suffix("/Cargo.toml")?;
            Some(Crate {
                directory,
                manifest: Manifest::parse(text)?,
            })
        })
    }
}

/// A package of the workspace.
pub(crate) struct Crate<'a> {
    /// Where it is, without a slash at the end.
    pub directory: &'a str,
    pub manifest: Manifest<'a>,
}

impl Crate<'_> {
    /// The directory's own name: `slices` for `crates/decisions/slices`.
    pub fn name(&self) -> &str {
        self.directory.rsplit('/').next().unwrap_or(self.directory)
    }

    /// The path of the manifest.
    pub fn manifest_path(&self) -> String {
        format!("{}/Cargo.toml", self.directory)
    }

    pub fn holds(&self, path: &str) -> bool {
        path.strip_prefix(self.directory)
            .is_some_and(|rest| rest.starts_with('/'))
    }
}
