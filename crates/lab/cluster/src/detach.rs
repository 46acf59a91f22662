//! How does a cluster start in the background, and its caller learn that it serves?

use crate::claim::{self, Known};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time between two looks.
const POLL: Duration = Duration::from_millis(50);

/// Starts this very command in the background, but for the flag that asks for it, and shows what it prints until the
/// cluster serves. Its further output goes to a file in the data directory.
pub fn run(name: &str, data_dir: &Path) -> anyhow::Result<()> {
    if let Known::Running(record) = claim::look_up(name)? {
        bail!("a cluster named {name:?} runs already (process {})", record.pid);
    }
    let path = data_dir.join("up.log");
    std::fs::create_dir_all(data_dir).with_context(|| format!("making {}", data_dir.display()))?;
    let log = File::create(&path).with_context(|| format!("writing {}", path.display()))?;
    let mut shown = File::open(&path).with_context(|| format!("reading {}", path.display()))?;
    let arguments = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--detach");
    let mut child = Command::new(std::env::current_exe().context("finding our own program")?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("sharing the log")?)
        .stderr(log)
        // Ctrl-C in this terminal is not for it.
        .process_group(0)
        .spawn()
        .context("starting in the background")?;
    loop {
        let ended = child.try_wait().context("waiting for the cluster")?;
        let serves = matches!(claim::look_up(name)?, Known::Running(record) if record.ready);
        if serves {
            // What it says when it serves comes right after that.
            std::thread::sleep(POLL);
        }
        show(&mut shown)?;
        match ended {
            Some(status) => bail!("the cluster ended: {status}; {} has what it said", path.display()),
            None if serves => return Ok(()),
            None => std::thread::sleep(POLL),
        }
    }
}

/// Shows what came since the last time.
fn show(log: &mut File) -> anyhow::Result<()> {
    let mut text = Vec::new();
    log.read_to_end(&mut text).context("reading the log")?;
    let mut out = std::io::stdout();
    out.write_all(&text)
        .and_then(|()| out.flush())
        .context("printing")
}
