//! How do we run a program that may hang?
//!
//! Every run has a limit. A program that is over it is killed, and what it did is unknown. The limit is
//! kept by a thread that sleeps until the program ends, so that a program which neither reads nor writes
//! nor ends is no trouble for the one who waits.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pointsman_dataplane::ProgramError;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The status of the program.
    pub status: ExitStatus,
    /// What it said on its standard error.
    pub errors: Vec<u8>,
}

/// A program about to be run.
#[derive(Debug)]
pub(crate) struct Program {
    name: String,
    command: Command,
    limit: Duration,
}

impl Program {
    /// `name` is for errors.
    pub fn new(name: String, command: Command, limit: Duration) -> Self {
        Self { name, command, limit }
    }

    /// Runs it with this input; nobody listens to what it prints.
    pub fn feed(mut self, input: &str) -> Result<Ended, ProgramError> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::null());
        let (mut child, guard) = self.start()?;
        let fed = child
            .stdin
            .take()
            .map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let ended = self.end(child, guard)?;
        // A program that succeeds without having read everything did not do what we asked.
        if ended.status.success() {
            fed.map_err(|source| self.broken(source))?;
        }
        Ok(ended)
    }

    /// Runs it and hands over what it prints, line by line.
    pub fn read(mut self, mut each_line: impl FnMut(&str)) -> Result<Ended, ProgramError> {
        self.command.stdin(Stdio::null()).stdout(Stdio::piped());
        let (mut child, guard) = self.start()?;
        let mut outcome = Ok(());
        if let Some(stdout) = child.stdout.take() {
            let mut reader = BufReader::new(stdout);
            let mut line = Vec::new();
            outcome = loop {
                match reader.read_until(b'\n', &mut line) {
                    Ok(0) => break Ok(()),
                    Ok(_) => each_line(String::from_utf8_lossy(&line).trim_end()),
                    Err(error) => break Err(error),
                }
                line.clear();
            };
        }
        let ended = self.end(child, guard)?;
        outcome.map_err(|source| self.broken(source))?;
        Ok(ended)
    }

    fn start(&mut self) -> Result<(Child, Guard), ProgramError> {
        let child = self.command.stderr(Stdio::piped()).spawn();
        let child = child.map_err(|source| start_failure(&self.name, source))?;
        let guard = Guard::over(&child, self.limit);
        Ok((child, guard))
    }

    fn end(&self, mut child: Child, guard: Guard) -> Result<Ended, ProgramError> {
        let mut errors = Vec::new();
        let read = match child.stderr.take() {
            Some(mut stderr) => stderr.read_to_end(&mut errors).map(drop),
            None => Ok(()),
        };
        let status = child.wait().map_err(|source| self.broken(source))?;
        if guard.fired() {
            return Err(ProgramError::Interrupted {
                program: self.name.clone(),
                how: format!("killed after {} s", self.limit.as_secs_f64()),
            });
        }
        read.map_err(|source| self.broken(source))?;
        Ok(Ended { status, errors })
    }

    fn broken(&self, source: io::Error) -> ProgramError {
        ProgramError::Io {
            program: self.name.clone(),
            source,
        }
    }
}

/// Kills a program at its limit, unless it is dropped before.
#[derive(Debug)]
struct Guard {
    fired: Arc<AtomicBool>,
    _alive: mpsc::Sender<()>,
}

impl Guard {
    /// Without the kernel's or the system's help there is no limit, as there is none for other programs.
    fn over(child: &Child, limit: Duration) -> Self {
        let (alive, ended) = mpsc::channel::<()>();
        let fired = Arc::new(AtomicBool::new(false));
        let guard = Self {
            fired: Arc::clone(&fired),
            _alive: alive,
        };
        let handle = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let Some(Ok(handle)) = handle.map(|id| pidfd_open(id, PidfdFlags::empty())) else {
            return guard;
        };
        let watch = move || {
            if ended.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                fired.store(true, Ordering::Release);
                // It may have ended in this moment.
                let _ = pidfd_send_signal(&handle, Signal::KILL);
            }
        };
        let thread = std::thread::Builder::new().name("limit".to_owned());
        let _ = thread.stack_size(64 << 10).spawn(watch);
        guard
    }

    fn fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }
}

fn start_failure(program: &str, source: io::Error) -> ProgramError {
    let program = program.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            ProgramError::Missing { program, source }
        }
        _ => ProgramError::Io { program, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Program {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Program::new("sh".to_owned(), command, limit)
    }

    #[test]
    fn a_program_that_hangs_is_killed_whether_it_is_fed_or_read() {
        let limit = Duration::from_millis(200);
        // More than a pipe holds, so that feeding hangs too.
        let input = "x".repeat(1 << 20);
        let fed = shell("exec sleep 600", limit).feed(&input);
        let read = shell("echo one; exec sleep 600", limit).read(|_| {});
        for outcome in [fed, read] {
            let error = outcome.expect_err("it hangs");
            assert_eq!(
                error.to_string(),
                "sh ended without a verdict: killed after 0.2 s"
            );
        }
    }

    #[test]
    fn a_program_that_reads_only_part_of_its_input_has_not_succeeded() {
        let limit = Duration::from_secs(60);
        let input = "x".repeat(1 << 20);
        let error = shell("head -c 10 >/dev/null", limit)
            .feed(&input)
            .expect_err("the pipe broke");
        assert!(matches!(error, ProgramError::Io { .. }), "{error:?}");
        let ended = shell("head -c 10 >/dev/null; exit 3", limit)
            .feed(&input)
            .expect("it said how it went");
        assert_eq!(ended.status.code(), Some(3));
    }
}
