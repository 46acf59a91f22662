//! How does a node of this machine get a containerd of its own?
//!
//! Several run side by side, each in the network namespace of its node. Everything that one keeps is below a directory.

use super::archive;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where distributions put the plugins that connect pods.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// The files of a containerd that only we use.
#[derive(Clone, Debug)]
pub struct Private {
    directory: PathBuf,
}

impl Private {
    /// Writes its configuration. The directory's path has to be short: sockets have no room for a long one.
    pub fn prepare(directory: &Path) -> io::Result<Self> {
        fs::create_dir_all(directory.join("net.d"))?;
        let this = Self {
            directory: directory.canonicalize()?,
        };
        fs::write(this.path("network.template"), this.network())?;
        fs::write(this.path("config.toml"), this.config())?;
        Ok(this)
    }

    /// The same, of a directory that was prepared before.
    pub fn of(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Where everything is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What the agent is told.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.path("socket").display())
    }

    /// The arguments of `containerd`.
    pub fn arguments(&self) -> [PathBuf; 2] {
        ["--config".into(), self.path("config.toml")]
    }

    /// The tool that comes with containerd, with the runtime interface's images and containers before it.
    pub fn ctr(&self) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.path("socket"));
        command.args(["--namespace", "k8s.io"]);
        command
    }

    /// Adds an image from an archive, as `docker save` or an OCI tool writes it.
    pub fn load(&self, archive: &Path) -> io::Result<()> {
        let mut command = self.ctr();
        run(command.args(["images", "import"]).arg(archive))
    }

    /// Adds the image without which no pod can be made. The first success says that containerd serves.
    pub fn load_pause(&self) -> io::Result<()> {
        let archive = self.path("pause.tar");
        fs::write(&archive, archive::pause())?;
        self.load(&archive)
    }

    fn network(&self) -> String {
        // The node routes, as it does for processes: what pods of one node say to each other goes through its rules.
        let addresses = self.path("addresses");
        format!(
            r#"{{"cniVersion": "0.4.0", "name": "pointsman", "plugins": [
  {{"type": "ptp", "ipMasq": false, "ipam": {{"type": "host-local", "dataDir": {addresses:?},
    "ranges": [{{{{range $i, $range := .PodCIDRRanges}}}}{{{{if $i}}}}, {{{{end}}}}[{{"subnet": "{{{{$range}}}}"}}]{{{{end}}}}],
    "routes": [{{{{range $i, $route := .Routes}}}}{{{{if $i}}}}, {{{{end}}}}{{"dst": "{{{{$route}}}}"}}{{{{end}}}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
]}}
"#
        )
    }

    fn config(&self) -> String {
        let plugins = PLUGINS
            .into_iter()
            .find(|path| Path::new(path).join("ptp").exists());
        let path = |name: &str| self.path(name).display().to_string();
        format!(
            r#"# Written by pointsman.
version = 2
root = {root:?}
state = {state:?}
[grpc]
  address = {socket:?}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {pause:?}
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = {plugins:?}
  conf_dir = {networks:?}
  conf_template = {template:?}
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"#,
            root = path("root"),
            state = path("state"),
            socket = path("socket"),
            pause = archive::PAUSE,
            plugins = plugins.unwrap_or(PLUGINS[0]),
            networks = path("net.d"),
            template = path("network.template"),
        )
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(said))
}
