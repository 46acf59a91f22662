//! What does a shim have to know to start a container?
//!
//! Pure but for the paths it is given: a container's spec and its pod's record in, a [`Launch`] or a
//! refusal out.

use std::path::{Component, Path, PathBuf};

use super::layout::Layout;
use super::record::SandboxRecord;
use crate::image::check_image;
use crate::shim::child::DEFAULT_PATH;
use crate::shim::protocol::{Bind, Ids, Launch, Root, file};
use crate::{ContainerSpec, Network, Refusal, RuntimeError, VolumeSource};

/// What the runtime's configuration says about every container.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// What containers see as `/`.
    pub root: Root,
    /// How large a log file grows.
    pub log_limit: u64,
}

/// Puts together what the shim reads.
pub fn plan(
    spec: &ContainerSpec,
    pod: &SandboxRecord,
    layout: &Layout,
    defaults: Defaults,
) -> Result<Launch, RuntimeError> {
    check_image(&spec.image)?;
    let command: Vec<String> = spec.command.iter().chain(&spec.args).cloned().collect();
    if command.is_empty() {
        return Err(RuntimeError::Refused {
            reason: Refusal::NoCommand,
            message: "the image \"host\" has no program of its own: give a command".to_owned(),
        });
    }
    let user = Ids {
        uid: spec.user.uid.unwrap_or(0),
        gid: spec.user.gid.unwrap_or(0),
        groups: spec.user.groups.clone(),
    };
    if spec.user.never_root && user.uid == 0 {
        return Err(refused(
            "container has runAsNonRoot and would run as root".to_owned(),
        ));
    }
    let has_nul = |text: &String| text.contains('\0');
    if command.iter().any(has_nul)
        || spec
            .env
            .iter()
            .any(|(name, value)| has_nul(name) || has_nul(value))
    {
        return Err(refused(
            "a command or environment variable holds a zero byte".to_owned(),
        ));
    }
    if let Some((name, _)) = spec
        .env
        .iter()
        .find(|(name, _)| name.is_empty() || name.contains('='))
    {
        return Err(refused(format!("{name:?} cannot name an environment variable")));
    }
    let has_own_network = pod.spec.network == Network::Own;
    Ok(Launch {
        env: environment(spec, user.uid, &pod.spec.hostname),
        command,
        working_dir: working_dir(spec)?,
        user,
        security: spec.security,
        hostname: has_own_network.then(|| pod.spec.hostname.clone()),
        netns: has_own_network.then(|| pointsman_fabric::Netns::path_of(&layout.netns(&spec.id.pod))),
        cgroup: None,
        binds: binds(spec, pod, layout)?,
        root: defaults.root,
        shares: Vec::new(),
        hidden: layout.root().to_owned(),
        log: layout.log(&pod.spec, &spec.id),
        log_limit: defaults.log_limit,
        attachable: spec.attachable,
    })
}

/// The environment, with what an image would usually say.
fn environment(spec: &ContainerSpec, uid: u32, hostname: &str) -> Vec<(String, String)> {
    let home = if uid == 0 { "/root" } else { "/" };
    let usual = [("PATH", DEFAULT_PATH), ("HOME", home), ("HOSTNAME", hostname)];
    let is_missing = |name: &str| !spec.env.iter().any(|(given, _)| given == name);
    let missing = usual.into_iter().filter(|(name, _)| is_missing(name));
    let missing = missing.map(|(name, value)| (name.to_owned(), value.to_owned()));
    missing.chain(spec.env.iter().cloned()).collect()
}

fn working_dir(spec: &ContainerSpec) -> Result<PathBuf, RuntimeError> {
    match &spec.working_dir {
        None => Ok(PathBuf::from("/")),
        Some(path) if path.is_absolute() => Ok(path.clone()),
        Some(path) => Err(refused(format!("the working directory {path:?} is not absolute"))),
    }
}

/// What of the node's files a container sees where.
pub(crate) fn binds(
    spec: &ContainerSpec,
    pod: &SandboxRecord,
    layout: &Layout,
) -> Result<Vec<Bind>, RuntimeError> {
    let etc = layout.etc(&spec.id.pod);
    let mut files = vec!["hosts", "hostname"];
    files.retain(|_| pod.spec.network == Network::Own);
    files.extend(pod.spec.resolv_conf.as_ref().map(|_| "resolv.conf"));
    let whole = |source: PathBuf, target: PathBuf| Bind {
        source,
        sub_path: None,
        make_sub_path: false,
        target,
        read_only: false,
    };
    let mut binds: Vec<Bind> = files
        .into_iter()
        .map(|name| whole(etc.join(name), Path::new("/etc").join(name)))
        .collect();
    if let Some(target) = &spec.termination_message {
        check_target(target)?;
        binds.push(whole(
            layout.container(&spec.id).join(file::TERMINATION),
            target.clone(),
        ));
    }
    let mut mounts: Vec<&crate::MountSpec> = spec.mounts.iter().collect();
    // A mount within another one's path comes after it.
    mounts.sort_by_key(|mount| mount.path.components().count());
    for mount in mounts {
        binds.push(bind_volume(mount, spec, pod, layout)?);
    }
    Ok(binds)
}

fn bind_volume(
    mount: &crate::MountSpec,
    spec: &ContainerSpec,
    pod: &SandboxRecord,
    layout: &Layout,
) -> Result<Bind, RuntimeError> {
    let volume = pod.spec.volumes.iter().find(|volume| volume.name == mount.volume);
    let Some(volume) = volume else {
        return Err(refused(format!("the pod has no volume {}", mount.volume)));
    };
    check_target(&mount.path)?;
    if let Some(path) = &mount.sub_path
        && !path.components().all(|part| matches!(part, Component::Normal(_)))
    {
        return Err(refused(format!("{path:?} is not a path within a volume")));
    }
    let own = layout.volume(&spec.id.pod, &volume.name);
    let (source, is_given) = match &volume.source {
        VolumeSource::Scratch { .. } => (own, false),
        VolumeSource::Files(_) => (own, true),
        VolumeSource::Host(path) if path.is_absolute() => (path.clone(), false),
        VolumeSource::Host(path) => return Err(refused(format!("the host path {path:?} is not absolute"))),
    };
    Ok(Bind {
        source,
        sub_path: mount.sub_path.clone(),
        make_sub_path: matches!(volume.source, VolumeSource::Scratch { .. }),
        target: mount.path.clone(),
        read_only: mount.read_only || is_given,
    })
}

fn check_target(target: &Path) -> Result<(), RuntimeError> {
    let mut components = target.components();
    let is_absolute = components.next() == Some(Component::RootDir);
    let is_plain = components
        .clone()
        .all(|part| matches!(part, Component::Normal(_)));
    if is_absolute && is_plain && components.next().is_some() {
        return Ok(());
    }
    Err(refused(format!(
        "{target:?} cannot be a mount path: it must be absolute, without .., and not /"
    )))
}

pub(crate) fn refused(message: String) -> RuntimeError {
    RuntimeError::Refused {
        reason: Refusal::InvalidSpec,
        message,
    }
}
