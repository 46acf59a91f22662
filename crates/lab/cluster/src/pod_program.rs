//! How do pods run this program, where nodes run processes and where they run images?

use super::claim::Record;
use super::containers;
use anyhow::{Context, bail};
use pointsman_runtime::cri::archive::{self, Entry};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The image with the program.
const IMAGE: &str = "pointsman.io/pointsman:own";
/// Where that has it.
const PLACE: &str = "/pointsman";

/// What pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodProgram {
    pub image: &'static str,
    /// Where containers of the image have the program.
    pub path: PathBuf,
}

impl PodProgram {
    /// A program of this machine, as a process.
    pub fn of_host(path: &Path) -> Self {
        Self {
            image: "host",
            path: path.to_owned(),
        }
    }

    /// A program of this machine, for pods on this cluster; where they run images, one is put onto all nodes.
    pub fn on(record: &Record, path: &Path) -> anyhow::Result<Self> {
        if !record.containerd {
            return Ok(Self::of_host(path));
        }
        let archive = record.data_dir.join("pod-program.tar");
        let bytes = image(path).with_context(|| format!("making an image of {}", path.display()))?;
        fs::write(&archive, bytes).with_context(|| format!("writing {}", archive.display()))?;
        for node in &record.nodes {
            containers::load_on(record, node, &archive)?;
        }
        fs::remove_file(&archive).with_context(|| format!("removing {}", archive.display()))?;
        Ok(Self {
            image: IMAGE,
            path: PLACE.into(),
        })
    }
}

/// An image of the program, with the libraries that it is linked to.
fn image(program: &Path) -> anyhow::Result<Vec<u8>> {
    let linked = Command::new("ldd").arg(program).output().context("running ldd")?;
    let mut files = BTreeMap::from([(PathBuf::from(PLACE), fs::read(program)?)]);
    // A static program has none.
    for library in libraries(&String::from_utf8_lossy(&linked.stdout)) {
        let bytes = fs::read(library).with_context(|| format!("reading {library}"))?;
        files.insert(library.into(), bytes);
    }
    let mut entries = Vec::new();
    for (path, bytes) in &files {
        let Some(path) = path.to_str().and_then(|path| path.strip_prefix('/')) else {
            bail!("{} cannot be in an image", path.display());
        };
        entries.push((path, Entry::Program(loaded(bytes))));
    }
    Ok(archive::image(IMAGE, &entries, &[PLACE]))
}

/// The paths in what `ldd` says.
fn libraries(listing: &str) -> impl Iterator<Item = &str> {
    listing
        .split_whitespace()
        .filter(|word| word.starts_with('/') && !word.ends_with(':'))
}

/// What the kernel loads of a program. Behind it is what only debuggers read, two thirds of a debug build.
fn loaded(program: &[u8]) -> &[u8] {
    let number = |at: usize, size: usize| {
        let bytes = program.get(at..at.checked_add(size)?)?;
        let number = bytes
            .iter()
            .rev()
            .fold(0, |sum: u64, byte| (sum << 8) | u64::from(*byte));
        usize::try_from(number).ok()
    };
    let end = || {
        // The table of segments of a 64-bit program, and the end of each that is loaded.
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        let mut end = table.checked_add(size * count)?;
        for at in (0..count).map(|index| table + index * size) {
            if number(at, 4)? == 1 {
                end = end.max(number(at + 8, 8)?.checked_add(number(at + 32, 8)?)?);
            }
        }
        Some(end)
    };
    let is_known = program.starts_with(b"\x7fELF\x02\x01");
    let end = if is_known { end() } else { None };
    &program[..end.map_or(program.len(), |end| end.min(program.len()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let dynamic = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
             \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let found: Vec<&str> = libraries(dynamic).collect();
        assert_eq!(
            found,
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert_eq!(libraries("\tstatically linked\n").count(), 0);
        assert_eq!(libraries("/bin/x:\n\tnot a dynamic executable\n").count(), 0);
    }

    #[test]
    fn what_only_debuggers_read_is_left_out_and_the_rest_still_runs() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let part = loaded(&own);
        assert!(part.len() < own.len(), "{} of {}", part.len(), own.len());
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        fs::write(&copy, part).unwrap();
        let listed = Command::new(&copy).args(["--list"]).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
        assert_eq!(loaded(b"#!/bin/sh\n"), b"#!/bin/sh\n");
        assert_eq!(loaded(&own[..40]), &own[..40], "what is cut off is left as it is");
    }
}
