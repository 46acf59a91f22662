//! What should the caller do when the runtime cannot do as asked?

use std::io;

use crate::ContainerId;

/// Why a request was not carried out; split by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The same request will never work: show the reason and wait for another spec.
    #[error("{message}")]
    Refused {
        /// The waiting reason to show.
        reason: Refusal,
        /// What is wrong, for the pod's author.
        message: String,
    },
    /// The program could not be started: a failed run of the container, to be tried again with back-off.
    #[error("{message}")]
    CannotStart {
        /// What was wrong.
        reason: StartFailure,
        /// What was tried and what the system said, for the pod's author.
        message: String,
    },
    /// No address of the node's range is free: try again when pods have gone.
    #[error("all addresses of {range} are taken")]
    NoAddress { range: String },
    /// The runtime does not know the pod: it was removed, or never made.
    #[error("pod {0} has no sandbox")]
    NoSuchPod(crate::PodUid),
    /// The runtime does not know this run of the container.
    #[error("there is no container {0}")]
    NoSuchContainer(ContainerId),
    /// The container has ended, so nothing can be run in it or sent to it.
    #[error("container {0} is not running")]
    NotRunning(ContainerId),
    /// The system failed us: try again later.
    #[error("cannot {doing}")]
    System {
        /// What the runtime was doing.
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl RuntimeError {
    /// Says what failed while the system was asked for something.
    pub fn system(doing: impl Into<String>, source: io::Error) -> Self {
        Self::System {
            doing: doing.into(),
            source,
        }
    }
}

/// Why a spec can never run; [`Refusal::reason`] is the container's waiting reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The image is no reference to an image at all.
    InvalidImageName,
    /// The runtime has no such image and cannot fetch it.
    ImageNotSupported,
    /// The image could not be fetched.
    PullFailed,
    /// The image is not here, and must not be fetched.
    NeverPulled,
    /// Neither the spec nor the image names a program.
    NoCommand,
    /// Something else in the spec cannot be carried out.
    InvalidSpec,
}

impl Refusal {
    /// The word Kubernetes users look for in `kubectl get pods`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::InvalidImageName => "InvalidImageName",
            Self::ImageNotSupported => "ImageNotSupported",
            Self::PullFailed => "ErrImagePull",
            Self::NeverPulled => "ErrImageNeverPull",
            Self::NoCommand => "CreateContainerError",
            Self::InvalidSpec => "CreateContainerConfigError",
        }
    }
}

/// Why a program could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum StartFailure {
    /// There is no such program.
    NotFound,
    /// It is there but is no program, or not for this user.
    NotExecutable,
    /// The working directory cannot be entered.
    WorkingDirectory,
    /// A volume cannot be mounted.
    Mount,
    /// Anything else around the start.
    Setup,
}

impl StartFailure {
    /// The exit code shown for the failed run: a shell's 127 and 126 for the program, 128 for the rest.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::NotFound => 127,
            Self::NotExecutable => 126,
            Self::WorkingDirectory | Self::Mount | Self::Setup => 128,
        }
    }
}
