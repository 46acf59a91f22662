//! Which images can be run without an image store?

use crate::{Refusal, RuntimeError};

/// The one image there is: the host's own files.
pub const HOST_IMAGE: &str = "host";

/// Accepts `host` and refuses everything else, saying which it was: no image reference at all, or an
/// image this runtime cannot fetch.
pub fn check_image(image: &str) -> Result<(), RuntimeError> {
    if image == HOST_IMAGE {
        return Ok(());
    }
    let (reason, message) = if is_reference(image) {
        (
            Refusal::ImageNotSupported,
            format!(
                "image {image:?} is not supported: containers are processes of this host, so that \
                 the only image is \"{HOST_IMAGE}\", and `command` names one of its programs"
            ),
        )
    } else {
        (
            Refusal::InvalidImageName,
            format!("{image:?} is not an image reference; the only image is \"{HOST_IMAGE}\""),
        )
    };
    Err(RuntimeError::Refused { reason, message })
}

/// A rough check of `registry:port/path/name:tag@digest`; nothing is fetched, so it only picks the reason.
pub(crate) fn is_reference(image: &str) -> bool {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    let word = |text: &str, more: &[u8]| {
        !text.is_empty()
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte) || more.contains(&byte))
    };
    let last = name.rsplit('/').next().unwrap_or(name);
    let lower = |text: &str| !text.bytes().any(|byte| byte.is_ascii_uppercase());
    name.split('/').all(|part| word(part, b":"))
        && lower(last.split(':').next().unwrap_or(last))
        && digest.is_none_or(|digest| digest.contains(':') && word(digest, b":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(image: &str) -> Refusal {
        match check_image(image) {
            Err(RuntimeError::Refused { reason, .. }) => reason,
            other => panic!("{image:?}: {other:?}"),
        }
    }

    #[test]
    fn only_the_host_image_runs_and_the_reason_tells_a_typing_error_from_a_foreign_image() {
        assert!(check_image("host").is_ok());
        for image in [
            "nginx",
            "registry.k8s.io:5000/e2e/agnhost:2.40",
            "a/b@sha256:0123",
            "host:latest",
        ] {
            assert_eq!(reason(image), Refusal::ImageNotSupported, "{image}");
        }
        for image in ["", "Nginx", "a//b", "a b", "/x", "x@", "x@abc"] {
            assert_eq!(reason(image), Refusal::InvalidImageName, "{image}");
        }
    }
}
