//! The files of a kubeadm control plane.

use crate::command::{fail, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct ControlPlane {
    home: TempDir,
}

impl ControlPlane {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("manifests")).unwrap();
        for program in ["kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
            let text = format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {program}\n  namespace: kube-system\nspec:\n  \
                 containers:\n  - command:\n    - {program}\n    - --v=2  # people edit these files\n    \
                 image: registry.k8s.io/{program}:v1.34.0\n    name: {program}\n  hostNetwork: true\n"
            );
            fs::write(home.path().join(format!("manifests/{program}.yaml")), text).unwrap();
        }
        for node in ["a", "b"] {
            let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n";
            fs::write(home.path().join(format!("kubelet-{node}.yaml")), text).unwrap();
        }
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn arguments(&self, command: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        all.extend(["--kubeadm-dir".into(), self.home.path().display().to_string()]);
        for node in ["a", "b"] {
            let path = self.path(&format!("kubelet-{node}.yaml"));
            all.extend(["--kubelet-config".into(), path.display().to_string()]);
        }
        all
    }

    async fn succeed(&self, command: &[&str]) -> String {
        let all = self.arguments(command);
        succeed(None, &all.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    async fn fail(&self, command: &[&str]) -> String {
        let all = self.arguments(command);
        fail(None, &all.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// Every file's text.
    fn texts(&self) -> Vec<String> {
        [
            "manifests/kube-apiserver.yaml",
            "manifests/kube-controller-manager.yaml",
            "manifests/kube-scheduler.yaml",
            "kubelet-a.yaml",
            "kubelet-b.yaml",
        ]
        .map(|name| fs::read_to_string(self.path(name)).unwrap())
        .to_vec()
    }
}

fn has(texts: &[String], report: &str, grace: &str, seconds: &str) {
    assert!(
        texts[0].contains(&format!(
            "    - --default-not-ready-toleration-seconds={seconds}\n"
        )),
        "{}",
        texts[0]
    );
    assert!(texts[0].contains(&format!(
        "    - --default-unreachable-toleration-seconds={seconds}\n"
    )));
    assert!(
        texts[1].contains(&format!("    - --node-monitor-grace-period={grace}\n")),
        "{}",
        texts[1]
    );
    for kubelet in &texts[3..] {
        assert!(
            kubelet.contains(&format!("nodeStatusUpdateFrequency: {report}\n")),
            "{kubelet}"
        );
    }
}

#[tokio::test]
async fn profiles_go_through_the_files_and_originals_come_back() {
    let plane = ControlPlane::new();
    let originals = plane.texts();
    let said = plane.succeed(&["apply", "low"]).await;
    has(&plane.texts(), "1m", "5m", "60");
    let steps: Vec<&str> = said.lines().filter(|line| line.contains(" = ")).collect();
    assert_eq!(steps.len(), 5, "through Medium: {said}");
    assert!(steps[0].contains("node-monitor-grace-period = 2m"), "{said}");
    assert_eq!(plane.texts()[2], originals[2], "files of others stay as they are");
    let check = plane.succeed(&["check"]).await;
    assert!(check.contains("LowUpdateSlowReaction"), "{check}");
    plane.succeed(&["apply", "Default"]).await;
    has(&plane.texts(), "10s", "40s", "300");
    plane.succeed(&["restore"]).await;
    assert_eq!(plane.texts(), originals);
    let names: Vec<_> = fs::read_dir(plane.path("manifests")).unwrap().collect();
    assert_eq!(
        names.len(),
        3,
        "nothing is left behind where the kubelet looks for pods"
    );
}

#[tokio::test]
async fn a_half_written_file_stops_everything_before_it_begins() {
    let plane = ControlPlane::new();
    let path = plane.path("manifests/kube-apiserver.yaml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() / 2]).unwrap();
    let before = plane.texts();
    let error = plane.fail(&["apply", "medium"]).await;
    assert!(error.contains("kube-apiserver.yaml"), "{error}");
    assert_eq!(plane.texts(), before);
}

#[tokio::test]
async fn a_file_that_cannot_be_written_brings_default_back() {
    let plane = ControlPlane::new();
    // The name of the temporary file is taken, so the kubelet's file cannot be replaced.
    fs::create_dir_all(plane.path(".kubelet-b.yaml.pointsman/taken")).unwrap();
    let error = plane.fail(&["apply", "medium"]).await;
    assert!(error.contains("MachineConfigOperator: Kubelet"), "{error}");
    assert!(error.contains("cannot write"), "{error}");
    let texts = plane.texts();
    assert!(
        texts[1].contains("--node-monitor-grace-period=40s"),
        "{}",
        texts[1]
    );
    assert!(texts[0].contains("toleration-seconds=300"), "{}", texts[0]);
    assert!(
        !texts[3].contains("20s"),
        "kubelets change together or not at all: {}",
        texts[3]
    );
}

#[tokio::test]
async fn a_process_with_the_old_flag_is_proof_that_nothing_happened() {
    let plane = ControlPlane::new();
    let process = plane.path("proc/7");
    fs::create_dir_all(&process).unwrap();
    let line = |grace: &str| {
        format!("/usr/local/bin/kube-controller-manager\0--node-monitor-grace-period={grace}\0")
    };
    fs::write(process.join("cmdline"), line("40s")).unwrap();
    let proc_dir = plane.path("proc").display().to_string();
    let observing = [
        "--observe-processes",
        "--proc-dir",
        &proc_dir,
        "--step-timeout",
        "1s",
    ];
    let error = plane.fail(&[&["apply", "medium"], &observing[..]].concat()).await;
    assert!(error.contains("KubeControllerManagerOperator"), "{error}");
    assert!(plane.texts()[1].contains("--node-monitor-grace-period=40s"));

    // A kubelet that starts the pod anew with the flags of its manifest.
    let restart = tokio::spawn(restart(
        plane.path("manifests/kube-controller-manager.yaml"),
        process,
    ));
    plane
        .succeed(&[&["apply", "medium"], &observing[..4], &["20s"]].concat())
        .await;
    restart.abort();
    has(&plane.texts(), "20s", "2m", "60");
}

async fn restart(manifest: PathBuf, process: PathBuf) {
    loop {
        let text = fs::read_to_string(&manifest).unwrap_or_default();
        let flags: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("- --"))
            .collect();
        let line = format!("kube-controller-manager\0--{}\0", flags.join("\0--"));
        replace(&process.join("cmdline"), &line);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("new");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, path).unwrap();
}
