//! A real browser, driven as a person would, over WebDriver.

use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::SOON;

const POLL: Duration = Duration::from_millis(50);
/// Nothing leaves this machine.
const FLAGS: [&str; 10] = [
    "--headless",
    // A picture is as wide as the window.
    "--hide-scrollbars",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Chromium and its driver; both end when this is dropped.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

/// What a page holds.
#[derive(Clone, Copy, Debug)]
pub struct Weight {
    /// Of the document, and others that scripts hold.
    pub nodes: u64,
    pub listeners: u64,
    pub heap_bytes: u64,
}

impl Browser {
    /// Starts a browser with a fresh profile and a window of this size.
    pub async fn start(width: u32, height: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let profile = tempfile::tempdir().unwrap();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .expect("chromedriver: `make deps` installs it");
        let mut browser = Self {
            driver,
            port,
            session: String::new(),
            _profile: profile,
        };
        browser.begin(width, height).await;
        browser
    }

    async fn begin(&mut self, width: u32, height: u32) {
        let deadline = Instant::now() + SOON;
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            assert!(Instant::now() < deadline, "chromedriver does not listen");
            tokio::time::sleep(POLL).await;
        }
        let mut flags: Vec<String> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(format!("--user-data-dir={}", self._profile.path().display()));
        flags.push(format!("--window-size={width},{height}"));
        let options = json!({ "args": flags });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let answer = self.call("POST", "/session", Some(&wanted)).await;
        self.session = answer["sessionId"].as_str().unwrap().to_owned();
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = tokio::time::timeout(SOON * 2, answer(stream)).await;
        let body = answer.expect("the driver answers");
        let answer: Value = serde_json::from_slice(&body).unwrap();
        let value = answer["value"].clone();
        assert!(value["error"].is_null(), "{method} {path}: {value}");
        value
    }

    async fn command(&self, name: &str, body: Value) -> Value {
        let path = format!("/session/{}/{name}", self.session);
        self.call("POST", &path, Some(&body)).await
    }

    /// Goes to a page.
    pub async fn open(&self, url: &str) {
        self.command("url", json!({ "url": url })).await;
    }

    /// What an expression is in the page.
    pub async fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.command("execute/sync", json!({ "script": script, "args": [] }))
            .await
    }

    /// Waits until an expression is true in the page.
    pub async fn until(&self, expression: &str) {
        let deadline = Instant::now() + SOON;
        while self.value(expression).await != true {
            if Instant::now() > deadline {
                let text = self.value("document.body.innerText").await;
                panic!("never true: {expression}\n{}", text.as_str().unwrap_or_default());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Presses and releases keys, as WebDriver writes them.
    pub async fn press(&self, keys: &[&str]) {
        let downs = keys.iter().flat_map(|key| {
            [
                json!({ "type": "keyDown", "value": key }),
                json!({ "type": "keyUp", "value": key }),
            ]
        });
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": downs.collect::<Vec<_>>() });
        self.command("actions", json!({ "actions": [keyboard] })).await;
    }

    /// What the page would look like for somebody who prefers `scheme`.
    pub async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let body = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": features } });
        self.command("goog/cdp/execute", body).await;
    }

    /// Makes the window as wide as this.
    pub async fn resize(&self, width: u32) {
        let params = json!({ "width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": false });
        let body = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": params });
        self.command("goog/cdp/execute", body).await;
    }

    /// What a promise in the page becomes.
    pub async fn resolved(&self, promise: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; ({promise}).then(done, (it) => done(String(it)))"
        );
        self.command("execute/async", json!({ "script": script, "args": [] }))
            .await
    }

    /// Keeps a picture of the whole page for the documentation when `POINTSMAN_SCREENSHOTS` names a directory.
    pub async fn keep(&self, name: &str) {
        let Ok(directory) = std::env::var("POINTSMAN_SCREENSHOTS") else {
            return;
        };
        let params = json!({ "captureBeyondViewport": true });
        let body = json!({ "cmd": "Page.captureScreenshot", "params": params });
        let answer = self.command("goog/cdp/execute", body).await;
        let picture = answer["data"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(picture).unwrap();
        std::fs::write(format!("{directory}/{name}.png"), bytes).unwrap();
    }

    /// What the page holds once what it no longer needs is gone.
    pub async fn weight(&self) -> Weight {
        for cmd in ["Performance.enable", "HeapProfiler.collectGarbage"] {
            self.command("goog/cdp/execute", json!({ "cmd": cmd, "params": {} }))
                .await;
        }
        let body = json!({ "cmd": "Performance.getMetrics", "params": {} });
        let answer = self.command("goog/cdp/execute", body).await;
        let metrics = answer["metrics"].as_array().unwrap();
        let named = |name: &str| {
            let metric = metrics.iter().find(|metric| metric["name"] == name);
            metric.unwrap()["value"].as_f64().unwrap() as u64
        };
        Weight {
            nodes: named("Nodes"),
            listeners: named("JSEventListeners"),
            heap_bytes: named("JSHeapUsedSize"),
        }
    }

    /// Ends the browser in order.
    pub async fn close(self) {
        let path = format!("/session/{}", self.session);
        self.call("DELETE", &path, None).await;
    }
}

/// The body of an answer. The driver keeps connections open, so its length counts.
async fn answer(mut stream: TcpStream) -> Vec<u8> {
    const END: &[u8] = b"\r\n\r\n";
    let mut received = Vec::new();
    let body = loop {
        assert!(
            stream.read_buf(&mut received).await.unwrap() > 0,
            "the answer was cut off"
        );
        if let Some(end) = received.windows(END.len()).position(|four| four == END) {
            break end + END.len();
        }
    };
    let head = String::from_utf8_lossy(&received[..body]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length: usize = length.expect("a length").trim().parse().unwrap();
    while received.len() < body + length {
        assert!(
            stream.read_buf(&mut received).await.unwrap() > 0,
            "the answer was cut off"
        );
    }
    received[body..body + length].to_vec()
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser is a child of the driver, in its process group.
        if let Some(group) = self
            .driver
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
        {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
