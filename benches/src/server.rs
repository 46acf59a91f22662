//! An API server to measure with.

use pointsman_api_client::connect::connect;
use pointsman_api_client::{Client, Source};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

/// A running `pointsman apiserver` on the disk of the repository; killed when dropped.
pub struct Server {
    home: TempDir,
    pub process: Child,
    /// Where it listens.
    pub address: String,
    pub client: Client,
}

impl Server {
    /// Starts it anywhere; returns when it is ready.
    pub async fn start(program: &str) -> Self {
        Self::start_at(program, free_address().await, &[]).await
    }

    /// Starts it at this address, with these flags.
    pub async fn start_at(program: &str, address: String, flags: &[&str]) -> Self {
        std::fs::create_dir_all("target/bench").expect("the repository can be written to");
        let home = tempfile::tempdir_in("target/bench").expect("a directory can be made");
        let data = home.path().join("data");
        let process = quiet(
            Command::new(program)
                .args(["apiserver", "--log=warn", "--listen", &address, "--data-dir"])
                .arg(&data)
                .args(flags),
        );
        let admin = Source::Kubeconfig(data.join("admin.kubeconfig"));
        let client = loop {
            if let Ok(client) = connect(&admin, "bench").await
                && client.get_path::<Value>("/version").await.is_ok()
            {
                break client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        Self {
            home,
            process,
            address,
            client,
        }
    }

    /// A file beside the server's data.
    pub fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.file("data/admin.kubeconfig")
    }

    /// The kubeconfig of a role.
    pub fn kubeconfig_of(&self, role: &str) -> PathBuf {
        self.file(&format!("data/kubeconfigs/{role}.kubeconfig"))
    }
}

/// Starts a process that says nothing and ends with the value.
pub fn quiet(command: &mut Command) -> Child {
    command
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts")
}

/// An address where nobody listens.
pub async fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    listener.local_addr().expect("its address").to_string()
}
