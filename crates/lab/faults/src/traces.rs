//! Is anything of a cluster left when it is gone?

use pointsman_fabric::Netns;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Everything of the cluster that is in the kernel or runs: what carries its name, its directory or the
/// identity of one of its pods. Other clusters may come and go meanwhile.
pub fn traces(name: &str, home: &Path, pods: &BTreeSet<String>) -> Vec<String> {
    let home = home.display().to_string();
    let marks: Vec<String> = pods
        .iter()
        .map(|uid| uid.split('-').next().unwrap_or(uid).to_owned())
        .chain([format!("{name}-"), format!("pm-{name}"), home])
        .collect();
    let everything = [
        ("namespace", Netns::names().unwrap_or_default().join("\n")),
        ("link", output("ip", &["-o", "link"])),
        ("route", output("ip", &["route"])),
        ("rule", output("nft", &["list", "ruleset"])),
        (
            "mount",
            fs::read_to_string("/proc/self/mounts").unwrap_or_default(),
        ),
        ("process", processes()),
        ("record", output("ls", &["/run/pointsman"])),
        (
            "cgroup",
            output(
                "find",
                &["/sys/fs/cgroup", "-maxdepth", "3", "-name", "*pointsman*"],
            ),
        ),
    ];
    let mut traces = Vec::new();
    for (kind, text) in everything {
        let is_ours = |line: &&str| marks.iter().any(|mark| line.contains(mark)) || *line == name;
        traces.extend(text.lines().filter(is_ours).map(|line| format!("{kind} {line}")));
    }
    traces
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let stdout = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&stdout).into_owned()
}

/// The command lines of all processes but this one.
fn processes() -> String {
    let own = std::process::id().to_string();
    let mut lines = String::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name();
        if pid
            .to_str()
            .is_some_and(|pid| pid != own && pid.parse::<u32>().is_ok())
        {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line: Vec<u8> = line
                .into_iter()
                .map(|byte| if byte < 32 { b' ' } else { byte })
                .collect();
            lines += &String::from_utf8_lossy(&line);
            lines.push('\n');
        }
    }
    lines
}
