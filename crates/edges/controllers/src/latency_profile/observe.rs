//! What does a running process say that its file does not?
//!
//! A static pod is started anew when its manifest changes; until then the old process runs with the old
//! flags. Its command line tells which.

use std::fs;
use std::path::{Path, PathBuf};

/// Reads the command lines of processes.
#[derive(Clone, Debug)]
pub struct Processes {
    root: PathBuf,
}

/// A program among the processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Running {
    /// None runs here.
    Nowhere,
    /// It runs, and says this about the flag.
    Here(Vec<Option<String>>),
}

impl Processes {
    /// Looks below this directory, usually `/proc`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// What every process of this program has for a flag.
    pub fn flag(&self, program: &str, flag: &str) -> Running {
        let Ok(entries) = fs::read_dir(&self.root) else {
            return Running::Nowhere;
        };
        let lines = entries
            .filter_map(Result::ok)
            .filter(|entry| {
                entry
                    .file_name()
                    .to_string_lossy()
                    .bytes()
                    .all(|byte| byte.is_ascii_digit())
            })
            .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let found: Vec<Option<String>> = lines.filter_map(|line| of(&line, program, flag)).collect();
        if found.is_empty() {
            Running::Nowhere
        } else {
            Running::Here(found)
        }
    }
}

/// The flag's value, if this is the program's command line.
fn of(line: &[u8], program: &str, flag: &str) -> Option<Option<String>> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split('\0').filter(|word| !word.is_empty());
    if words.next()?.rsplit('/').next() != Some(program) {
        return None;
    }
    let prefix = format!("--{flag}=");
    Some(
        words
            .filter_map(|word| word.strip_prefix(&prefix))
            .next_back()
            .map(str::to_owned),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_tell_the_flag_in_force() {
        let root = tempfile::tempdir().unwrap();
        let processes = Processes::at(root.path());
        assert_eq!(processes.flag("kube-apiserver", "x"), Running::Nowhere);
        for (id, line) in [
            ("12", "/usr/bin/kube-apiserver\0--x=1\0--y=2\0"),
            ("self", "kube-apiserver\0--x=9\0"),
        ] {
            fs::create_dir(root.path().join(id)).unwrap();
            fs::write(root.path().join(id).join("cmdline"), line).unwrap();
        }
        assert_eq!(
            processes.flag("kube-apiserver", "x"),
            Running::Here(vec![Some("1".into())])
        );
        assert_eq!(processes.flag("kube-apiserver", "z"), Running::Here(vec![None]));
        assert_eq!(processes.flag("etcd", "x"), Running::Nowhere);
    }
}
