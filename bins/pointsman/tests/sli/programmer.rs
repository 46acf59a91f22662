//! A programmer whose every word the test decides.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Serves `/watermark`, `/metrics` and `/clock` like a proxy.
pub struct Programmer {
    name: &'static str,
    address: SocketAddr,
    mark: watch::Sender<Mark>,
    metrics: Arc<Mutex<String>>,
    serving: JoinHandle<()>,
}

#[derive(Clone, Copy)]
struct Mark {
    committed: u64,
    received: u64,
    hangs: bool,
}

impl Programmer {
    /// Starts one that has written the empty cluster that it found.
    pub async fn start(name: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (mark, marks) = watch::channel(Mark {
            committed: 1,
            received: 1,
            hangs: false,
        });
        let metrics = Arc::new(Mutex::new(String::new()));
        let text = metrics.clone();
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, name, marks.clone(), text.clone()));
            }
        });
        Self {
            name,
            address,
            mark,
            metrics,
            serving,
        }
    }

    /// What `--programmer` takes.
    pub fn listed(&self) -> pointsman_collector::Listed {
        format!("{}=http://{}", self.name, self.address).parse().unwrap()
    }

    /// Everything up to this version is in the kernel.
    pub fn commit(&self, version: u64) {
        self.mark.send_modify(|mark| {
            mark.committed = version;
            mark.received = mark.received.max(version);
        });
    }

    /// The watch has told of this version.
    pub fn receive(&self, version: u64) {
        self.mark.send_modify(|mark| mark.received = version);
    }

    /// Says nothing any more, with its connections open.
    pub fn hang(&self) {
        self.mark.send_modify(|mark| mark.hangs = true);
    }

    /// What `/metrics` says.
    pub fn measure(&self, text: &str) {
        *self.metrics.lock().unwrap() = text.to_owned();
    }
}

impl Drop for Programmer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(
    mut stream: TcpStream,
    name: &'static str,
    mut marks: watch::Receiver<Mark>,
    metrics: Arc<Mutex<String>>,
) {
    let mut request = vec![0; 1024];
    let length = stream.read(&mut request).await.unwrap_or(0);
    let request = String::from_utf8_lossy(&request[..length]).into_owned();
    let head = "HTTP/1.1 200 OK\r\n\r\n";
    let body = match request.split(' ').nth(1).unwrap_or("") {
        "/metrics" => metrics.lock().unwrap().clone(),
        "/clock" => format!("{{\"time\":\"{}\"}}", jiff::Timestamp::now()),
        "/watermark" => {
            let _ = stream.write_all(head.as_bytes()).await;
            loop {
                let mark = *marks.borrow_and_update();
                let line = format!(
                    "{{\"node\":\"{name}\",\"generation\":1,\"services\":{0},\"endpointSlices\":{0},\
                     \"planned\":{{\"services\":{0},\"endpointSlices\":{0}}},\
                     \"received\":{{\"services\":{1},\"endpointSlices\":{1}}},\"time\":\"{2}\"}}\n",
                    mark.committed,
                    mark.received,
                    jiff::Timestamp::now(),
                );
                if !mark.hangs && stream.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
                let _ = tokio::time::timeout(Duration::from_secs(1), marks.changed()).await;
            }
        }
        _ => return,
    };
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
}
