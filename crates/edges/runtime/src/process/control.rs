//! How does the agent talk to a shim?

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::shim::protocol::{FRAME_MAX, Reply, Request, encode, file};

/// Sends a request to the shim of the container in this directory and returns its reply with what follows.
pub async fn ask(directory: &Path, request: &Request) -> io::Result<(Reply, Vec<u8>)> {
    let mut stream = connect(directory).await?;
    stream.write_all(&encode(request)?).await?;
    let reply: Reply = read_reply(&mut stream).await?;
    let mut output = Vec::new();
    if let Reply::Exec { output_len, .. } = &reply {
        output.resize((*output_len).min(FRAME_MAX), 0);
        stream.read_exact(&mut output).await?;
    }
    Ok((reply, output))
}

/// Returns when the shim has ended, and so has written down how the container ended.
pub async fn watch(directory: &Path) -> io::Result<()> {
    let mut stream = connect(directory).await?;
    stream.write_all(&encode(&Request::Watch)?).await?;
    read_reply(&mut stream).await?;
    let mut rest = [0; 16];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

pub async fn connect(directory: &Path) -> io::Result<UnixStream> {
    // By way of a descriptor, because a socket's path may have 107 bytes only.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), file::SOCKET);
    UnixStream::connect(path).await
}

pub async fn read_reply(stream: &mut UnixStream) -> io::Result<Reply> {
    let length = stream.read_u32_le().await? as usize;
    if length > FRAME_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the frame is too long",
        ));
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(serde_json::from_slice(&frame)?)
}
