//! Why does the kernel refuse a user namespace, and what helps?

use rustix::io::Errno;

/// What the kernel is set to, as far as it can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `user.max_user_namespaces`.
    pub most: Option<u64>,
    /// `kernel.unprivileged_userns_clone`, on Debian's older kernels.
    pub clone: Option<u64>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, on Ubuntu.
    pub apparmor: Option<u64>,
}

impl Settings {
    pub fn read() -> Self {
        let read = |path: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/{path}")).ok()?;
            text.trim().parse().ok()
        };
        Self {
            most: read("user/max_user_namespaces"),
            clone: read("kernel/unprivileged_userns_clone"),
            apparmor: read("kernel/apparmor_restrict_unprivileged_userns"),
        }
    }
}

const OTHERWISE: &str = "or run `sudo pointsman up`, or `pointsman up --nodes 0` for the API server and \
                         controllers alone";

/// What to tell somebody whose user namespace was refused.
pub fn refused(error: Errno, settings: &Settings) -> String {
    let what =
        "nodes live in network namespaces; without root they need a user namespace, which the kernel refuses";
    let remedy = match settings {
        Settings { most: Some(0), .. } => "allow some: `sysctl -w user.max_user_namespaces=1000`",
        Settings { clone: Some(0), .. } => "allow them: `sysctl -w kernel.unprivileged_userns_clone=1`",
        Settings {
            apparmor: Some(1..), ..
        } => {
            "allow them: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`, or give this program a profile"
        }
        _ if error == Errno::NOSPC => "too many exist: raise `user.max_user_namespaces`",
        _ if error == Errno::INVAL || error == Errno::NOSYS => {
            "the kernel needs CONFIG_USER_NS and CONFIG_PID_NS"
        }
        _ => "a container or security module around this program forbids it",
    };
    format!("{what} ({error}): {remedy}; {OTHERWISE}")
}

/// What to tell somebody whose user namespace has no rights.
pub fn powerless(doing: &str, settings: &Settings) -> String {
    let remedy = match settings.apparmor {
        Some(1..) => {
            "AppArmor takes all rights from user namespaces: `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
        }
        _ => "a container or security module around this program forbids it",
    };
    format!("{doing} in a user namespace: {remedy}; {OTHERWISE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_refuses_is_named() {
        let most = Settings {
            most: Some(0),
            ..Settings::default()
        };
        assert!(refused(Errno::NOSPC, &most).contains("user.max_user_namespaces=1000"));
        let apparmor = Settings {
            most: Some(100),
            apparmor: Some(1),
            ..Settings::default()
        };
        assert!(refused(Errno::PERM, &apparmor).contains("apparmor_restrict_unprivileged_userns=0"));
        assert!(powerless("mounting /run", &apparmor).contains("apparmor_restrict_unprivileged_userns=0"));
        assert!(refused(Errno::INVAL, &Settings::default()).contains("CONFIG_USER_NS"));
        let many = Settings {
            most: Some(7),
            ..Settings::default()
        };
        assert!(refused(Errno::NOSPC, &many).contains("too many exist"));
    }
}
