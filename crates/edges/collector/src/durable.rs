//! How do cluster-days survive?
//!
//! Two files. `state.json` holds the running measurement; it is replaced whole, so that a crash leaves
//! either the old one or the new one. `days.log` gets one line for each finished day. Both carry a
//! checksum; what does not match it is left out and said.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pointsman_sli::measure::Measure;
use pointsman_sli::slo::Day;

use crate::saved::Saved;

/// Days that are kept in memory and in the file.
pub(crate) const DAYS: usize = 400;

/// Where it is written down.
#[derive(Clone, Debug)]
pub(crate) struct Store(PathBuf);

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub measure: Option<Measure>,
    pub days: Vec<Day>,
    /// Lines and files that could not be believed.
    pub damaged: usize,
}

impl Store {
    /// Opens a directory, making it if it is not there.
    pub fn open(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self(directory.to_owned()))
    }

    /// Reads what is there.
    pub fn load(&self) -> io::Result<Found> {
        let mut found = Found::default();
        match fs::read_to_string(self.state()) {
            Ok(text) => {
                found.measure = decode(text.trim_end());
                found.damaged += usize::from(found.measure.is_none());
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let days = match fs::read(self.days()) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        for line in days.lines() {
            match decode::<Day>(line) {
                Some(day) => {
                    // A day may have been written twice around a crash; the last word counts.
                    found.days.retain(|known| known.number != day.number);
                    found.days.push(day);
                }
                None => found.damaged += 1,
            }
        }
        found.days.sort_by_key(|day| day.number);
        let extra = found.days.len().saturating_sub(DAYS);
        found.days.drain(..extra);
        // The file would otherwise grow for ever, and a torn last line would swallow the next.
        if extra > 0 || found.damaged > 0 {
            let lines: String = found.days.iter().map(|day| line(&day.to_json())).collect();
            replace(&self.days(), lines.as_bytes())?;
        }
        Ok(found)
    }

    /// Writes down a measurement as it is now; durable when this returns.
    pub fn save(&self, measure: &Measure) -> io::Result<()> {
        replace(&self.state(), line(&measure.to_json()).as_bytes())
    }

    /// Writes down a finished day; durable when this returns.
    pub fn append(&self, day: &Day) -> io::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.days())?;
        file.write_all(line(&day.to_json()).as_bytes())?;
        file.sync_all()
    }

    fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    fn days(&self) -> PathBuf {
        self.0.join("days.log")
    }
}

fn line(text: &str) -> String {
    format!("{:016x} {text}\n", checksum(text))
}

fn decode<T: Saved>(line: &str) -> Option<T> {
    let (sum, text) = line.split_once(' ')?;
    let matches = u64::from_str_radix(sum, 16).ok()? == checksum(text);
    matches.then(|| T::from_json(text)).flatten()
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// FNV-1a: enough to notice a torn or altered line.
fn checksum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_model::Moment;

    fn day(number: i64, programmers: usize) -> Day {
        Day {
            programmers,
            ..Day::new(number)
        }
    }

    #[test]
    fn days_and_the_running_measurement_are_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("new")).unwrap();
        assert!(store.load().unwrap().measure.is_none());
        let mut measure = Measure::new(None, Moment(5));
        measure.joined("n1", Moment(5));
        store.save(&measure).unwrap();
        for number in [7, 8] {
            store.append(&day(number, 1)).unwrap();
        }
        store.append(&day(8, 2)).unwrap();
        let found = store.load().unwrap();
        assert_eq!((found.measure, found.damaged), (Some(measure), 0));
        assert_eq!(found.days, [day(7, 1), day(8, 2)]);
    }

    #[test]
    fn torn_and_altered_lines_are_left_out_and_the_rest_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        store.append(&day(1, 1)).unwrap();
        store.append(&day(2, 1)).unwrap();
        let path = store.days();
        let text = fs::read_to_string(&path)
            .unwrap()
            .replacen("\"programmers\":1", "\"programmers\":9", 1);
        let torn = format!("{text}0123456789abcdef {{\"number\":3,");
        fs::write(&path, torn).unwrap();
        fs::write(store.state(), "garbage").unwrap();
        let found = store.load().unwrap();
        assert_eq!((found.days, found.damaged), (vec![day(2, 1)], 3));
        store.append(&day(3, 1)).unwrap();
        assert_eq!(store.load().unwrap().days, [day(2, 1), day(3, 1)]);
    }

    #[test]
    fn the_file_of_days_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(directory.path()).unwrap();
        let all: String = (0..500).map(|number| line(&day(number, 1).to_json())).collect();
        fs::write(store.days(), all).unwrap();
        assert_eq!(store.load().unwrap().days.len(), DAYS);
        assert_eq!(fs::read_to_string(store.days()).unwrap().lines().count(), DAYS);
    }
}
