//! How does a disk fail below a running program?
//!
//! A small library is compiled and preloaded into the program. It lets syncs of the store's file fail when asked to, and
//! remembers what a disk would hold after power loss; see `disk.c`.

use fastrand::Rng;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("disk.c");
const PAGE: u64 = 4096;
/// Disks write so many bytes as a whole.
const SECTOR: u64 = 512;
/// Where the fields of the shared control block lie.
const FAIL_SYNCS: u64 = 0;
const FAILED: u64 = 4;
const PAGES: u64 = 8;
const STATES: u64 = 16;

/// The page was written and not synced.
const DIRTY: u8 = 1;
/// A sync of the page has failed: it counts as clean, and is not on disk.
const LOST: u8 = 2;

/// The disk of one file.
pub struct Disk {
    library: PathBuf,
    state: PathBuf,
    file: PathBuf,
}

impl Disk {
    /// Compiles the library; `file` need not exist yet.
    pub fn new(home: &Path, file: PathBuf) -> Self {
        let state = home.join("disk");
        fs::create_dir_all(&state).expect("a directory in a temporary one");
        let (source, library) = (state.join("disk.c"), state.join("disk.so"));
        fs::write(&source, SOURCE).expect("a file in a temporary directory");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl")
            .status();
        assert!(
            compiled.is_ok_and(|status| status.success()),
            "cc cannot compile {}",
            source.display()
        );
        Self { library, state, file }
    }

    /// What the program's environment needs.
    pub fn environment(&self) -> [(&'static str, &Path); 3] {
        [
            ("LD_PRELOAD", &self.library),
            ("LAB_DISK_FILE", &self.file),
            ("LAB_DISK_STATE", &self.state),
        ]
    }

    /// Lets the next syncs fail; zero stops that.
    pub fn fail_syncs(&self, count: u32) {
        let control = self.control();
        control
            .write_all_at(&count.to_ne_bytes(), FAIL_SYNCS)
            .expect("the control block");
    }

    /// How many syncs have failed.
    pub fn failed(&self) -> u32 {
        number(&self.control(), FAILED)
    }

    /// Makes the file what a disk would hold: lost pages are as they were; of those that were not synced some are and
    /// some are not, and some are torn. Only while nothing uses the file. Returns how many pages changed.
    pub fn lose_power(&self, random: &mut Rng) -> usize {
        let control = self.control();
        let mut states = vec![0; number(&control, PAGES) as usize];
        control
            .read_exact_at(&mut states, STATES)
            .expect("the control block");
        let platter = File::open(self.state.join("platter")).expect("it was made with the control block");
        let Ok(file) = OpenOptions::new().write(true).open(&self.file) else {
            return 0;
        };
        let length = file.metadata().expect("an open file").len();
        // Half of the time nothing was written back yet, which is what happens to a quiet machine.
        let none = random.bool();
        let mut changed = 0;
        for (page, state) in (0..).zip(&states) {
            let whole = match *state {
                LOST => true,
                DIRTY => none || random.bool(),
                _ => continue,
            };
            let torn = *state == DIRTY && !whole && random.u32(0..4) == 0;
            let end = if whole {
                PAGE
            } else if torn {
                SECTOR * random.u64(1..PAGE / SECTOR)
            } else {
                0
            };
            let (start, end) = (page * PAGE, (page * PAGE + end).min(length));
            if start < end {
                let mut old = vec![0; (end - start) as usize];
                platter
                    .read_exact_at(&mut old, start)
                    .expect("saved before it was written");
                file.write_all_at(&old, start)
                    .expect("a file in a temporary directory");
                changed += 1;
            }
        }
        states.fill(0);
        control.write_all_at(&states, STATES).expect("the control block");
        changed
    }

    fn control(&self) -> File {
        let path = self.state.join("control");
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("the program has started once")
    }
}

fn number(control: &File, at: u64) -> u32 {
    let mut bytes = [0; 4];
    control.read_exact_at(&mut bytes, at).expect("the control block");
    u32::from_ne_bytes(bytes)
}
