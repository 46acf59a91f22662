//! How is one setting changed in a file that people wrote?
//!
//! Files are edited line by line, so that comments, order and everything else stay as they were. Before
//! and after, the file must be the document that it claims to be: half a file is never written over.

use serde::Deserialize;
use thiserror::Error;

/// Why a file is left alone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// It cannot be parsed: it is half written, or damaged.
    #[error("it is not complete YAML ({0}); wait for its writer or restore it")]
    NotYaml(String),
    /// It is something else.
    #[error("it is not {wanted}")]
    NotThis {
        /// What was looked for.
        wanted: String,
    },
    /// The line could not be placed.
    #[error("it has no line `- {0}` to put flags behind")]
    NoCommand(String),
}

/// A pod in a file, of which nothing may be missing.
#[derive(Deserialize)]
struct StaticPod {
    kind: String,
    spec: StaticPodSpec,
}

#[derive(Deserialize)]
struct StaticPodSpec {
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    /// Every container has one, and writers put it behind the command: a file that was cut off there is
    /// still good YAML, but not a whole manifest.
    #[serde(rename = "image")]
    _image: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    args: Vec<String>,
}

#[derive(Deserialize)]
struct Kubelet {
    kind: String,
    #[serde(default, rename = "nodeStatusUpdateFrequency")]
    frequency: Option<String>,
}

/// The value of a flag of a static pod's program; nothing if it is not set.
pub fn flag(text: &str, program: &str, flag: &str) -> Result<Option<String>, ManifestError> {
    let pod: StaticPod = parse(text)?;
    let wanted = || ManifestError::NotThis {
        wanted: format!("the manifest of a pod that runs {program}"),
    };
    let container = pod.spec.containers.first().filter(|_| pod.kind == "Pod");
    let container = container.ok_or_else(wanted)?;
    let mut words = container.command.iter().chain(&container.args);
    let first = words.next();
    if first.and_then(|first| first.rsplit('/').next()) != Some(program) {
        return Err(wanted());
    }
    Ok(words
        .filter_map(|word| value_of(word, flag))
        .next_back()
        .map(str::to_owned))
}

/// The same manifest with a flag set.
pub fn with_flag(text: &str, program: &str, flag: &str, value: &str) -> Result<String, ManifestError> {
    self::flag(text, program, flag)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let wanted = format!("--{flag}={value}");
    let is_flag = |line: &str| item(line).is_some_and(|(_, word)| value_of(word, flag).is_some());
    match lines.iter().rposition(|line| is_flag(line)) {
        Some(at) => {
            let (indent, _) = item(&lines[at]).expect("it was found as an item");
            lines[at] = format!("{indent}- {wanted}");
        }
        None => {
            let is_program =
                |line: &String| item(line).is_some_and(|(_, word)| word.rsplit('/').next() == Some(program));
            let at = lines.iter().position(is_program);
            let at = at.ok_or_else(|| ManifestError::NoCommand(program.to_owned()))?;
            let (indent, _) = item(&lines[at]).expect("it was found as an item");
            let line = format!("{indent}- {wanted}");
            lines.insert(at + 1, line);
        }
    }
    let edited = lines.join("\n") + "\n";
    match self::flag(&edited, program, flag)? {
        Some(found) if found == value => Ok(edited),
        _ => Err(ManifestError::NoCommand(program.to_owned())),
    }
}

/// `nodeStatusUpdateFrequency` of a kubelet's configuration file; nothing if it is not set.
pub fn frequency(text: &str) -> Result<Option<String>, ManifestError> {
    let kubelet: Kubelet = parse(text)?;
    if kubelet.kind != "KubeletConfiguration" {
        return Err(ManifestError::NotThis {
            wanted: "a KubeletConfiguration".into(),
        });
    }
    Ok(kubelet.frequency)
}

/// The same configuration with another `nodeStatusUpdateFrequency`.
pub fn with_frequency(text: &str, value: &str) -> Result<String, ManifestError> {
    const KEY: &str = "nodeStatusUpdateFrequency:";
    frequency(text)?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let wanted = format!("{KEY} {value}");
    match lines.iter().position(|line| line.starts_with(KEY)) {
        Some(at) => lines[at] = wanted,
        None => {
            // After the last line of the document's own content.
            let end = lines
                .iter()
                .rposition(|line| !line.trim().is_empty() && line.trim() != "...");
            lines.insert(end.map_or(0, |at| at + 1), wanted);
        }
    }
    let edited = lines.join("\n") + "\n";
    match frequency(&edited)? {
        Some(found) if found == value => Ok(edited),
        _ => Err(ManifestError::NotThis {
            wanted: "a file with nodeStatusUpdateFrequency on the top level".into(),
        }),
    }
}

fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, ManifestError> {
    serde_saphyr::from_str(text).map_err(|error| {
        let text = error.to_string();
        ManifestError::NotYaml(text.lines().next().unwrap_or_default().to_owned())
    })
}

/// Indentation and word of a list item, without quotes.
fn item(line: &str) -> Option<(&str, &str)> {
    let word = line.trim_start().strip_prefix("- ")?.trim();
    let indent = &line[..line.len() - line.trim_start().len()];
    Some((indent, word.trim_matches(|quote| quote == '"' || quote == '\'')))
}

fn value_of<'a>(word: &'a str, flag: &str) -> Option<&'a str> {
    word.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: &str = "apiVersion: v1
kind: Pod
metadata:
  name: kube-controller-manager
spec:
  containers:
  - command:
    - kube-controller-manager
    # people write comments
    - --bind-address=127.0.0.1
    - --node-monitor-grace-period=40s
    image: registry.k8s.io/kube-controller-manager:v1.34.0
    livenessProbe:
      httpGet: {path: /healthz, port: 10257}
  hostNetwork: true
";

    #[test]
    fn one_line_changes_and_nothing_else() {
        let program = "kube-controller-manager";
        let name = "node-monitor-grace-period";
        assert_eq!(flag(MANAGER, program, name), Ok(Some("40s".into())));
        let edited = with_flag(MANAGER, program, name, "2m").unwrap();
        assert_eq!(edited, MANAGER.replace("period=40s", "period=2m"));
        assert_eq!(with_flag(&edited, program, name, "40s").unwrap(), MANAGER);
        let without = MANAGER.replace("    - --node-monitor-grace-period=40s\n", "");
        let added = with_flag(&without, program, name, "5m").unwrap();
        assert_eq!(flag(&added, program, name), Ok(Some("5m".into())));
        assert_eq!(added.lines().count(), MANAGER.lines().count());
    }

    #[test]
    fn half_a_file_and_another_file_are_left_alone() {
        let half = &MANAGER[..MANAGER.len() / 2];
        let program = "kube-controller-manager";
        assert!(with_flag(half, program, "node-monitor-grace-period", "2m").is_err());
        assert!(with_flag("", program, "node-monitor-grace-period", "2m").is_err());
        assert!(matches!(
            with_flag(MANAGER, "kube-apiserver", "x", "1"),
            Err(ManifestError::NotThis { .. })
        ));
    }

    #[test]
    fn a_kubelets_configuration_keeps_its_other_lines() {
        let file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n# slow link\nnodeStatusUpdateFrequency: 10s\ncgroupDriver: systemd\n";
        assert_eq!(frequency(file), Ok(Some("10s".into())));
        assert_eq!(
            with_frequency(file, "1m").unwrap(),
            file.replace("Frequency: 10s", "Frequency: 1m")
        );
        let without = file.replace("nodeStatusUpdateFrequency: 10s\n", "");
        let added = with_frequency(&without, "20s").unwrap();
        assert_eq!(frequency(&added), Ok(Some("20s".into())));
        assert!(frequency("kind: Pod\n").is_err());
        assert!(frequency("kind: [").is_err());
    }
}
