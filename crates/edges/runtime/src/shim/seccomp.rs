//! Which system calls can a container be kept from?
//!
//! The profile of `RuntimeDefault` is after that of Docker and containerd: what administers the machine is refused,
//! unless the container has the capability for it; so are namespaces, keys, and interfaces whose mistakes have led out
//! of containers. It knows the calls of Linux 6.10: later ones do not exist for the program, which then does without.

use std::io;

use libc::{
    SYS_acct, SYS_add_key, SYS_bpf, SYS_chroot, SYS_clock_settime, SYS_clone, SYS_clone3, SYS_delete_module,
    SYS_fanotify_init, SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen, SYS_fspick,
    SYS_get_mempolicy, SYS_init_module, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup,
    SYS_kcmp, SYS_kexec_file_load, SYS_kexec_load, SYS_keyctl, SYS_lookup_dcookie, SYS_mbind,
    SYS_migrate_pages, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages, SYS_nfsservctl,
    SYS_open_by_handle_at, SYS_open_tree, SYS_perf_event_open, SYS_personality, SYS_pidfd_getfd,
    SYS_pivot_root, SYS_process_madvise, SYS_process_vm_readv, SYS_process_vm_writev, SYS_quotactl,
    SYS_quotactl_fd, SYS_reboot, SYS_request_key, SYS_set_mempolicy, SYS_set_mempolicy_home_node,
    SYS_setdomainname, SYS_sethostname, SYS_setns, SYS_settimeofday, SYS_socket, SYS_swapoff, SYS_swapon,
    SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup, c_long, sock_filter, sock_fprog,
};

use crate::CapabilitySet;

/// The last call that this profile was written for (`mseal`, Linux 6.10).
const LAST: u32 = 462;
const SYS_STATMOUNT: c_long = 457;
const SYS_LISTMOUNT: c_long = 458;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Calls that one capability allows.
const WITH_CAPABILITY: [(&str, &[c_long]); 11] = [
    (
        "SYS_ADMIN",
        &[
            SYS_bpf,
            SYS_clone3,
            SYS_fanotify_init,
            SYS_fsconfig,
            SYS_fsmount,
            SYS_fsopen,
            SYS_fspick,
            SYS_lookup_dcookie,
            SYS_mount,
            SYS_mount_setattr,
            SYS_move_mount,
            SYS_open_tree,
            SYS_perf_event_open,
            SYS_quotactl,
            SYS_quotactl_fd,
            SYS_setdomainname,
            SYS_sethostname,
            SYS_setns,
            SYS_STATMOUNT,
            SYS_LISTMOUNT,
            SYS_umount2,
            SYS_unshare,
        ],
    ),
    ("DAC_READ_SEARCH", &[SYS_open_by_handle_at]),
    ("SYSLOG", &[SYS_syslog]),
    ("SYS_BOOT", &[SYS_reboot]),
    ("SYS_CHROOT", &[SYS_chroot]),
    (
        "SYS_MODULE",
        &[SYS_delete_module, SYS_finit_module, SYS_init_module],
    ),
    (
        "SYS_NICE",
        &[
            SYS_get_mempolicy,
            SYS_mbind,
            SYS_migrate_pages,
            SYS_move_pages,
            SYS_set_mempolicy,
            SYS_set_mempolicy_home_node,
        ],
    ),
    ("SYS_PACCT", &[SYS_acct]),
    (
        "SYS_PTRACE",
        &[
            SYS_kcmp,
            SYS_pidfd_getfd,
            SYS_process_madvise,
            SYS_process_vm_readv,
            SYS_process_vm_writev,
        ],
    ),
    ("SYS_TIME", &[SYS_clock_settime, SYS_settimeofday]),
    ("SYS_TTY_CONFIG", &[SYS_vhangup]),
];

/// Calls that no container makes.
const NEVER: [c_long; 13] = [
    SYS_add_key,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_uring_setup,
    SYS_kexec_file_load,
    SYS_kexec_load,
    SYS_keyctl,
    SYS_nfsservctl,
    SYS_pivot_root,
    SYS_request_key,
    SYS_swapoff,
    SYS_swapon,
    SYS_userfaultfd,
];

/// Calls of the past, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLD: [c_long; 11] = [
    libc::SYS__sysctl,
    libc::SYS_afs_syscall,
    libc::SYS_getpmsg,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_putpmsg,
    libc::SYS_security,
    libc::SYS_sysfs,
    libc::SYS_tuxcall,
    libc::SYS_uselib,
    libc::SYS_ustat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: [c_long; 0] = [];

/// Flags of `clone` that make namespaces.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP;
/// `PER_LINUX`, `PER_LINUX32`, both with the layout of old kernels, and the question which it is.
const PERSONALITIES: [u32; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
/// As a kernel without the call would answer, so that programs take the older way.
const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

/// Whether filters can be had on this machine.
pub fn is_possible() -> bool {
    ARCHITECTURE.is_some() && std::path::Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

/// A program for the kernel that judges system calls.
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// What programs get that do not administer the machine, except by these capabilities.
    pub fn ordinary(capabilities: CapabilitySet) -> Self {
        let has = |name: &str| CapabilitySet::named(name).is_some_and(|one| capabilities.contains(one));
        let mut filter = Self(Vec::new());
        filter.load(offset::ARCHITECTURE);
        // Programs for another architecture have other numbers for the same calls.
        filter.push(jump(libc::BPF_JEQ, ARCHITECTURE.unwrap_or(0), 1, 0));
        filter.answer(UNKNOWN);
        filter.load(offset::NUMBER);
        filter.answer_if(libc::BPF_JGT, LAST, UNKNOWN);
        if !has("SYS_ADMIN") {
            filter.answer_if(libc::BPF_JEQ, number(SYS_clone3), UNKNOWN);
            filter.only_if(
                SYS_clone,
                libc::BPF_JSET,
                &[NAMESPACES.cast_unsigned()],
                REFUSE,
                ALLOW,
            );
        }
        for (capability, calls) in WITH_CAPABILITY {
            if !has(capability) {
                filter.refuse(calls);
            }
        }
        filter.refuse(&NEVER);
        filter.refuse(&OLD);
        filter.only_if(SYS_personality, libc::BPF_JEQ, &PERSONALITIES, ALLOW, REFUSE);
        // To the machine below this one.
        filter.only_if(
            SYS_socket,
            libc::BPF_JEQ,
            &[libc::AF_VSOCK.cast_unsigned()],
            REFUSE,
            ALLOW,
        );
        filter.answer(ALLOW);
        filter
    }

    /// Makes the calling process and all it becomes and starts subject to the filter. Safe between fork and exec.
    #[expect(unsafe_code, reason = "prctl(2) takes a pointer to the filter")]
    pub fn install(&self) -> io::Result<()> {
        let length = u16::try_from(self.0.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = sock_fprog {
            len: length,
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: the kernel reads `len` instructions, which live as long as the call.
        let done = unsafe {
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
        };
        super::checked(done).map(drop)
    }

    fn push(&mut self, instruction: sock_filter) {
        self.0.push(instruction);
    }

    fn load(&mut self, offset: u32) {
        self.push(statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset));
    }

    fn answer(&mut self, answer: u32) {
        self.push(statement(libc::BPF_RET | libc::BPF_K, answer));
    }

    /// Answers if what was loaded compares so.
    fn answer_if(&mut self, comparison: u32, value: u32, answer: u32) {
        self.push(jump(comparison, value, 0, 1));
        self.answer(answer);
    }

    fn refuse(&mut self, calls: &[c_long]) {
        for call in calls {
            self.answer_if(libc::BPF_JEQ, number(*call), REFUSE);
        }
    }

    /// Judges a call by its first argument: one answer if it compares so with any of the values, the other if not.
    fn only_if(&mut self, call: c_long, comparison: u32, values: &[u32], if_so: u32, otherwise: u32) {
        // The argument is loaded, compared with each value, and the last answer is given.
        let behind = u8::try_from(2 + 2 * values.len()).unwrap_or(u8::MAX);
        self.push(jump(libc::BPF_JEQ, number(call), 0, behind));
        self.load(offset::FIRST_ARGUMENT);
        for value in values {
            self.answer_if(comparison, *value, if_so);
        }
        self.answer(otherwise);
    }
}

/// Where the kernel's `struct seccomp_data` has what; of an argument the low half, on machines with low bytes first.
mod offset {
    pub const NUMBER: u32 = 0;
    pub const ARCHITECTURE: u32 = 4;
    pub const FIRST_ARGUMENT: u32 = 16;
}

/// No call has a negative number.
fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn statement(code: u32, k: u32) -> sock_filter {
    instruction(code, k, 0, 0)
}

fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    instruction(libc::BPF_JMP | comparison | libc::BPF_K, k, jt, jf)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // All codes are below 256.
    let code = u16::try_from(code).unwrap_or(u16::MAX);
    sock_filter { code, jt, jf, k }
}
