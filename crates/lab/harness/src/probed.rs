//! How often is a server really probed?

use crate::eventually;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// An HTTP server that notes when it is asked, and answers with the status that it was given; with 0, which is what it
/// begins with, it hangs up.
pub struct Probed {
    pub port: u16,
    status: Arc<AtomicU16>,
    asked: Arc<Mutex<Vec<Instant>>>,
}

impl Probed {
    /// Serves on a thread of its own, in the network namespace of the caller's.
    pub fn start(address: &str) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let status = Arc::new(AtomicU16::new(0));
        let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let (current, seen) = (status.clone(), asked.clone());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                seen.lock().unwrap().push(Instant::now());
                let status = current.load(Ordering::SeqCst);
                let _ = stream.read(&mut [0; 1024]);
                if status != 0 {
                    let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
                }
            }
        });
        Self { port, status, asked }
    }

    pub fn answer(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    /// When it was first asked.
    pub async fn first_asked(&self) -> Instant {
        eventually("the server is asked", async || {
            self.asked.lock().unwrap().first().copied()
        })
        .await
    }

    /// How often it has been asked.
    pub fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The time between two questions from now on: the median of three, so that a machine that stalls once does not
    /// change it.
    pub async fn pace(&self) -> Duration {
        let past = self.count();
        let seen = eventually("the server is asked four times", async || {
            let asked = self.asked.lock().unwrap();
            (asked.len() >= past + 4).then(|| asked[past..].to_vec())
        })
        .await;
        let mut gaps: Vec<Duration> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort();
        gaps[gaps.len() / 2]
    }
}
