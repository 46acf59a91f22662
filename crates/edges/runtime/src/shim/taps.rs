//! Who else reads what a program writes?
//!
//! Its output goes to the log; those who attach get a copy of what comes while they are there. Nobody who reads slowly
//! holds the program back: what does not fit into his pipe is left out, and he is told how much.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

/// What may wait for a reader, if the kernel gives so much.
const ROOM: usize = 1 << 20;

/// The copies that are made.
#[derive(Debug, Default)]
pub struct Taps(Vec<Tap>);

#[derive(Debug)]
struct Tap {
    connection: u64,
    /// Which output it is of.
    output: usize,
    pipe: std::fs::File,
    left_out: usize,
}

impl Taps {
    /// Copies an output for a connection from now on; returns the end to read.
    pub fn open(&mut self, connection: u64, output: usize) -> io::Result<OwnedFd> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&write, ROOM);
        self.0.push(Tap {
            connection,
            output,
            pipe: write.into(),
            left_out: 0,
        });
        Ok(read)
    }

    /// Ends the copies for a connection.
    pub fn close(&mut self, connection: u64) {
        self.0.retain(|tap| tap.connection != connection);
    }

    /// Copies what was read of an output.
    pub fn copy(&mut self, output: usize, bytes: &[u8]) {
        for tap in self.0.iter_mut().filter(|tap| tap.output == output) {
            tap.copy(bytes);
        }
    }
}

impl Tap {
    fn copy(&mut self, mut bytes: &[u8]) {
        if self.left_out > 0 {
            let note = format!(
                "\n[{} bytes were left out: this client reads too slowly]\n",
                self.left_out
            );
            // So little is written whole or not at all.
            if self.pipe.write(note.as_bytes()).is_ok() {
                self.left_out = 0;
            }
        }
        while self.left_out == 0 && !bytes.is_empty() {
            match self.pipe.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(_) => break,
            }
        }
        self.left_out += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_slow_reader_loses_output_and_is_told_and_the_writer_never_waits() {
        let mut taps = Taps::default();
        let mut read = std::fs::File::from(taps.open(7, 0).unwrap());
        let other = taps.open(7, 1).unwrap();
        let line = [b'x'; 4096];
        for _ in 0..600 {
            taps.copy(0, &line);
        }
        let mut buffer = vec![0; 4 << 20];
        let kept = read.read(&mut buffer).unwrap();
        assert!(kept < 600 * 4096 && kept > 0);
        taps.copy(0, b"again\n");
        let length = read.read(&mut buffer).unwrap();
        let lost = 600 * 4096 - kept;
        let expected = format!("\n[{lost} bytes were left out: this client reads too slowly]\nagain\n");
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), expected);
        drop(other);
        taps.close(7);
        assert_eq!(read.read(&mut buffer).unwrap(), 0, "the pipe has ended");
    }
}
