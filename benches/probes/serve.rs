//! Servers for all probes, on one port of every loopback address. As cheap as can be, because they
//! share the machine with what is measured.

use anyhow::Result;
use rustix::event::epoll::{self, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::collections::HashMap;
use std::io::Write;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsRawFd;

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
const LISTENER: u64 = u64::MAX;

/// Settings, headers with status 200, the message SERVING, and trailers with status 0.
const GRPC: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x01\x01\x04\x00\x00\x00\x01\x88\
    \x00\x00\x07\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x02\x08\x01\
    \x00\x00\x0f\x01\x05\x00\x00\x00\x01\x00\x0bgrpc-status\x010";

/// Serves until the one that started it is gone.
pub fn run() -> Result<()> {
    let listener = TcpListener::bind("0.0.0.0:0")?;
    rustix::net::listen(&listener, 8192)?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?.port());
    std::io::stdout().flush()?;
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        &listener,
        epoll::EventData::new_u64(LISTENER),
        EventFlags::IN,
    )?;
    let mut waiting: HashMap<u64, OwnedFd> = HashMap::new();
    let mut events = [MaybeUninit::<epoll::Event>::uninit(); 256];
    loop {
        let (ready, _) = epoll::wait(&epoll, &mut events, None)?;
        for event in &*ready {
            let token = event.data.u64();
            if token == LISTENER {
                accept(&epoll, &listener, &mut waiting);
            } else if waiting.get(&token).is_some_and(|socket| answer(socket.as_fd())) {
                waiting.remove(&token);
            }
        }
    }
}

fn accept(epoll: &OwnedFd, listener: &TcpListener, waiting: &mut HashMap<u64, OwnedFd>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    while let Ok(socket) = rustix::net::accept_with(listener, flags) {
        // The request is mostly there already.
        if answer(socket.as_fd()) {
            continue;
        }
        let token = socket.as_raw_fd() as u64;
        if epoll::add(epoll, &socket, epoll::EventData::new_u64(token), EventFlags::IN).is_ok() {
            waiting.insert(token, socket);
        }
    }
}

/// Answers a request if it is there; true once the connection is done with.
fn answer(socket: BorrowedFd<'_>) -> bool {
    let mut request = [0; 1024];
    match rustix::net::recv(socket, &mut request, RecvFlags::empty()) {
        Ok((0, _)) => true,
        Ok((length, _)) if request[..length].starts_with(b"PRI") => {
            let _ = rustix::net::send(socket, GRPC, SendFlags::NOSIGNAL);
            false
        }
        // What follows a gRPC request is an acknowledgement.
        Ok((length, _)) if !request[..length].starts_with(b"GET") => false,
        Ok(_) => {
            let _ = rustix::net::send(socket, ANSWER, SendFlags::NOSIGNAL);
            true
        }
        Err(rustix::io::Errno::AGAIN) => false,
        Err(_) => true,
    }
}
