//! How does a container's output become a log file?
//!
//! Every line is written as the container runtime interface has it, `TIME STREAM TAG TEXT`, with tag `F`
//! for a line's end and `P` for a piece of a long one. A full file is renamed to end in `.1`, so that at
//! most two are kept. A disk that is full loses lines and not the container: they are counted, and the log
//! says how many as soon as it can be written again.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags};

/// A line is cut into pieces of this size; the runtimes of Kubernetes do the same.
pub const PIECE: usize = 16 << 10;

/// Which of the two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn word(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Cuts one output into log lines.
#[derive(Debug)]
pub struct Lines {
    stream: Stream,
    unfinished: Vec<u8>,
}

impl Lines {
    /// Begins with no output.
    pub fn new(stream: Stream) -> Self {
        Self {
            stream,
            unfinished: Vec::new(),
        }
    }

    /// Adds output that was read at `time`; whole lines go to `log`.
    pub fn feed(&mut self, mut output: &[u8], time: &str, log: &mut Vec<u8>) {
        while let Some(end) = output.iter().position(|byte| *byte == b'\n') {
            self.pieces(&output[..end], time, log);
            let rest = std::mem::take(&mut self.unfinished);
            self.write(&rest, 'F', time, log);
            self.unfinished = rest;
            self.unfinished.clear();
            output = &output[end + 1..];
        }
        self.pieces(output, time, log);
    }

    /// Writes what has no line end, for there will be none.
    pub fn finish(&mut self, time: &str, log: &mut Vec<u8>) {
        if !self.unfinished.is_empty() {
            let rest = std::mem::take(&mut self.unfinished);
            self.write(&rest, 'F', time, log);
        }
    }

    /// Keeps at most one piece, and writes the ones before it.
    fn pieces(&mut self, mut text: &[u8], time: &str, log: &mut Vec<u8>) {
        while self.unfinished.len() + text.len() > PIECE {
            let (now, later) = text.split_at(PIECE - self.unfinished.len());
            self.unfinished.extend_from_slice(now);
            let piece = std::mem::take(&mut self.unfinished);
            self.write(&piece, 'P', time, log);
            text = later;
        }
        self.unfinished.extend_from_slice(text);
    }

    fn write(&self, text: &[u8], tag: char, time: &str, log: &mut Vec<u8>) {
        log.extend_from_slice(format!("{time} {} {tag} ", self.stream.word()).as_bytes());
        log.extend_from_slice(text);
        log.push(b'\n');
    }
}

/// A log file that starts anew when it is full.
#[derive(Debug)]
pub struct LogFile {
    directory: File,
    name: PathBuf,
    file: File,
    size: u64,
    limit: u64,
    lost_lines: u64,
    torn: bool,
}

impl LogFile {
    /// Opens or makes the file. Its directory is kept open, so that it is found again after the root of
    /// the file tree has changed.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let directory = OpenOptions::new().read(true).open(parent)?;
        let name = PathBuf::from(name);
        let file = open_in(&directory, &name)?;
        let size = file.metadata()?.len();
        Ok(Self {
            directory,
            name,
            file,
            size,
            limit,
            lost_lines: 0,
            torn: false,
        })
    }

    /// Appends whole lines, or counts them as lost. `time` is for what the log says about itself.
    pub fn append(&mut self, lines: &[u8], time: &str) {
        if lines.is_empty() {
            return;
        }
        if self.size > 0 && self.size + lines.len() as u64 > self.limit {
            self.rotate();
        }
        let mut before = Vec::new();
        if self.torn {
            before.push(b'\n');
        }
        if self.lost_lines > 0 {
            let lost = self.lost_lines;
            let notice = format!("{time} stderr F pointsman: {lost} lines of output could not be written\n");
            before.extend_from_slice(notice.as_bytes());
        }
        if !before.is_empty() {
            if self.write(&before).is_err() {
                self.lost_lines += count(lines);
                return;
            }
            (self.torn, self.lost_lines) = (false, 0);
        }
        if let Err(written) = self.write(lines) {
            self.lost_lines += count(&lines[written..]);
            self.torn = written > 0 && lines[written - 1] != b'\n';
        }
    }

    /// How many lines could not be written and were not yet reported.
    pub fn lost_lines(&self) -> u64 {
        self.lost_lines
    }

    /// Writes all, or says how much was written.
    fn write(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut written = 0;
        while written < bytes.len() {
            match self.file.write(&bytes[written..]) {
                Ok(0) => return Err(written),
                Ok(more) => {
                    written += more;
                    self.size += more as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(written),
            }
        }
        Ok(())
    }

    /// Renames the full file and begins a new one. If that fails, the old one goes on.
    fn rotate(&mut self) {
        let mut old = self.name.clone().into_os_string();
        old.push(".1");
        let renamed = rustix::fs::renameat(&self.directory, &self.name, &self.directory, Path::new(&old));
        if renamed.is_err() {
            return;
        }
        if let Ok(file) = open_in(&self.directory, &self.name) {
            (self.file, self.size) = (file, 0);
        }
    }
}

fn open_in(directory: &File, name: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o640))?;
    Ok(fd.into())
}

/// The lines in a piece of log.
fn count(log: &[u8]) -> u64 {
    log.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Removes a log file and its older half; missing ones are fine.
pub fn remove(path: &Path) -> io::Result<()> {
    let mut old = path.as_os_str().to_owned();
    old.push(".1");
    for path in [path, Path::new(&old)] {
        match rustix::fs::unlinkat(rustix::fs::CWD, path, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A wall time as `2006-01-02T15:04:05.999999999Z`.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (seconds, nanos) = (since.as_secs(), since.subsec_nanos());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// The date of a day counted from 1970-01-01, counting years from March so that leap days come last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_written_with_nanoseconds() {
        let at = |seconds, nanos| timestamp(SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(at(951_782_399, 5), "2000-02-28T23:59:59.000000005Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(1_794_780_000, 120_000_000), "2026-11-15T22:00:00.120000000Z");
    }

    #[test]
    fn a_long_line_is_cut_into_pieces_and_only_the_last_is_full() {
        let (mut lines, mut log) = (Lines::new(Stream::Stderr), Vec::new());
        lines.feed(&vec![b'x'; 2 * PIECE + 1], "T", &mut log);
        lines.feed(b"y\nz", "U", &mut log);
        lines.finish("V", &mut log);
        let text = String::from_utf8(log).unwrap();
        let heads: Vec<(&str, usize)> = text.lines().map(|line| (&line[..10], line.len() - 11)).collect();
        assert_eq!(
            heads,
            [
                ("T stderr P", PIECE),
                ("T stderr P", PIECE),
                ("U stderr F", 2),
                ("V stderr F", 1)
            ]
        );
    }

    #[test]
    fn a_full_file_is_renamed_and_two_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut log = LogFile::open(&path, 100).unwrap();
        for number in 0..10 {
            log.append(format!("{number} {}\n", "x".repeat(40)).as_bytes(), "T");
        }
        let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(read("0.log.1").starts_with("6 ") && read("0.log").starts_with("8 "));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
        // A shim that starts again goes on where the file ended.
        LogFile::open(&path, 100).unwrap().append(b"end\n", "T");
        assert!(read("0.log").ends_with("end\n"));
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_log_holds_every_byte_however_the_output_is_cut(
            text in proptest::collection::vec(prop_oneof![8 => any::<u8>(), 1 => Just(b'\n')], 0..400),
            cuts in proptest::collection::vec(1usize..60, 1..20),
        ) {
            let (mut lines, mut log) = (Lines::new(Stream::Stdout), Vec::new());
            let (mut rest, mut cuts) = (&text[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                lines.feed(now, "T", &mut log);
                rest = later;
            }
            lines.finish("T", &mut log);
            let mut read = Vec::new();
            for line in log.split_inclusive(|byte| *byte == b'\n') {
                prop_assert!(line.starts_with(b"T stdout F "));
                read.extend_from_slice(&line[11..]);
            }
            if !text.ends_with(b"\n") && !text.is_empty() {
                prop_assert_eq!(read.pop(), Some(b'\n'));
            }
            prop_assert_eq!(read, text);
        }
    }
}
