//! What is a command connected to, and who holds the other ends?

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use super::failure::Failure;
use super::protocol::Launch;
use crate::StartFailure;

/// The most descriptors that are handed over at once.
pub const HANDED_MAX: usize = 3;

/// The ends that a command gets.
#[derive(Debug)]
pub struct Streams {
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub is_terminal: bool,
}

impl Streams {
    /// A command without input.
    pub fn of_output(stdout: OwnedFd, stderr: OwnedFd) -> Self {
        Self {
            stdin: None,
            stdout,
            stderr,
            is_terminal: false,
        }
    }

    /// Pipes, and their other ends: input, if there is one, output, errors.
    pub fn piped(launch: &Launch, has_stdin: bool) -> Result<(Self, Vec<OwnedFd>), Failure> {
        let ((out, stdout), (err, stderr)) = (output(launch)?, output(launch)?);
        let mut streams = Self::of_output(stdout, stderr);
        let mut held = vec![out, err];
        if has_stdin {
            let (read, write) = super::input(launch).map_err(setup)?;
            streams.stdin = Some(read);
            held.insert(0, write);
        }
        Ok((streams, held))
    }

    /// A terminal of the container, and its other end.
    pub fn terminal(launch: &Launch) -> Result<(Self, OwnedFd), Failure> {
        let open = || -> io::Result<_> {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let master = openpt(flags)?;
            grantpt(&master)?;
            unlockpt(&master)?;
            let stdin = ioctl_tiocgptpeer(&master, flags)?;
            super::give_to_user(launch, &stdin)?;
            rustix::io::ioctl_fionbio(&master, true)?;
            let streams = Self {
                stdout: stdin.try_clone()?,
                stderr: stdin.try_clone()?,
                stdin: Some(stdin),
                is_terminal: true,
            };
            Ok((streams, master))
        };
        open().map_err(|error| Failure::new(StartFailure::Setup, "making a terminal", error))
    }
}

/// One pipe for output and errors, and the end to read.
pub fn joined(launch: &Launch) -> Result<(OwnedFd, OwnedFd, OwnedFd), Failure> {
    let (read, write) = output(launch)?;
    Ok((write.try_clone().map_err(setup)?, write, read))
}

fn output(launch: &Launch) -> Result<(OwnedFd, OwnedFd), Failure> {
    super::pipe(launch).map_err(setup)
}

fn setup(error: io::Error) -> Failure {
    Failure::new(StartFailure::Setup, "preparing the command", error)
}

/// Sends bytes with descriptors, of which the receiver gets copies.
pub fn hand_over(stream: &UnixStream, bytes: &[u8], held: &[OwnedFd]) -> io::Result<()> {
    let held: Vec<BorrowedFd<'_>> = held.iter().map(AsFd::as_fd).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDED_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&held)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        stream,
        &[io::IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    // A few bytes into an empty buffer of a socket.
    match sent == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}
