//! What went wrong, and would the caller do something else about it?

use std::io;

/// A namespace, link, address or route could not be had. `doing` says what was tried.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The caller lacks the capabilities.
    #[error("{doing}: not permitted; this needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    NotPermitted { doing: String },
    /// The name is taken.
    #[error("{doing}: it exists already")]
    Exists { doing: String },
    /// Something that the call needs is not there.
    #[error("{doing}: not found")]
    Missing { doing: String },
    /// The name is hidden below a mount that another program made over its directory, and cannot go.
    #[error(
        "{doing}: it is hidden below another mount of {}, and stays until that goes",
        crate::RUN_DIR
    )]
    Shadowed { doing: String },
    /// This kernel was built without the feature.
    #[error("{doing}: this kernel cannot do it")]
    Unsupported {
        doing: String,
        #[source]
        source: io::Error,
    },
    #[error("{doing}")]
    Failed {
        doing: String,
        #[source]
        source: io::Error,
    },
}

impl FabricError {
    /// Sorts an error of the system by what a caller would do about it.
    pub(crate) fn new(doing: impl Into<String>, source: io::Error) -> Self {
        use rustix::io::Errno;
        let doing = doing.into();
        let errno = source.raw_os_error().map(Errno::from_raw_os_error);
        match errno {
            Some(Errno::PERM | Errno::ACCESS) => Self::NotPermitted { doing },
            Some(Errno::EXIST) => Self::Exists { doing },
            Some(Errno::NOENT | Errno::NODEV | Errno::SRCH) => Self::Missing { doing },
            Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT) => {
                Self::Unsupported { doing, source }
            }
            _ => Self::Failed { doing, source },
        }
    }

    /// Nothing to do: what was to be deleted is gone.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// The name is taken.
    pub fn is_exists(&self) -> bool {
        matches!(self, Self::Exists { .. })
    }
}

/// Succeeds if it worked or was so before.
pub(crate) fn unless_exists(outcome: Result<(), FabricError>) -> Result<(), FabricError> {
    match outcome {
        Err(FabricError::Exists { .. }) => Ok(()),
        other => other,
    }
}

/// Whether something was there to be deleted.
pub(crate) fn if_there(outcome: Result<(), FabricError>) -> Result<bool, FabricError> {
    match outcome {
        Ok(()) => Ok(true),
        Err(FabricError::Missing { .. }) => Ok(false),
        Err(other) => Err(other),
    }
}
