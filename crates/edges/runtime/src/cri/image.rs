//! Is a container's image here, and who does it run as?

use super::Inner;
use super::client::failed;
use super::messages::*;
use crate::image::is_reference;
use crate::{ContainerSpec, Pull, Refusal, RuntimeError, User};

impl Inner {
    /// The id of the container's image, which is fetched if it has to be.
    pub(super) async fn image(
        &self,
        spec: &ContainerSpec,
        pod: &PodSandboxConfig,
    ) -> Result<String, RuntimeError> {
        let name = &spec.image;
        if !is_reference(name) {
            return Err(refused(
                Refusal::InvalidImageName,
                format!("{name:?} is not an image reference"),
            ));
        }
        let mut found = match spec.pull {
            Pull::Always => None,
            Pull::IfNotPresent | Pull::Never => self.present(name).await?,
        };
        if found.is_none() {
            if spec.pull == Pull::Never {
                let message = format!("Container image {name:?} is not present with pull policy of Never");
                return Err(refused(Refusal::NeverPulled, message));
            }
            let request = PullImageRequest {
                image: Some(ImageSpec { image: name.clone() }),
                sandbox_config: Some(pod.clone()),
            };
            let pulled: Result<PullImageResponse, _> = self.client.image("PullImage", request).await;
            pulled.map_err(|status| refused(Refusal::PullFailed, status.message().to_owned()))?;
            found = self.present(name).await?;
        }
        let gone = || {
            refused(
                Refusal::PullFailed,
                format!("image {name:?} was removed while it was fetched"),
            )
        };
        let image = found.ok_or_else(gone)?;
        check_user(&spec.user, &image)?;
        Ok(image.id)
    }

    async fn present(&self, name: &str) -> Result<Option<Image>, RuntimeError> {
        let request = ImageStatusRequest {
            image: Some(ImageSpec {
                image: name.to_owned(),
            }),
        };
        let answer: Result<ImageStatusResponse, _> = self.client.image("ImageStatus", request).await;
        let answer = answer.map_err(|status| failed(format!("look for the image {name:?}"), &status))?;
        Ok(answer.image)
    }
}

/// Refuses an image that would run as root where that must not be. A name may be anybody's.
fn check_user(user: &User, image: &Image) -> Result<(), RuntimeError> {
    if !user.never_root || user.uid.is_some() {
        return Ok(());
    }
    let message = match (&image.uid, image.username.as_str()) {
        (Some(uid), _) if uid.value != 0 => return Ok(()),
        (None, name) if !name.is_empty() => {
            format!(
                "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
            )
        }
        _ => "container has runAsNonRoot and image will run as root".to_owned(),
    };
    Err(refused(Refusal::InvalidSpec, message))
}

fn refused(reason: Refusal, message: String) -> RuntimeError {
    RuntimeError::Refused { reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_may_run_as_root_is_refused_to_who_must_not() {
        let check = |uid: Option<i64>, username: &str, own: Option<u32>| {
            let user = User {
                uid: own,
                never_root: true,
                ..User::default()
            };
            let image = Image {
                uid: uid.map(|value| Int64Value { value }),
                username: username.to_owned(),
                ..Image::default()
            };
            check_user(&user, &image).is_ok()
        };
        assert!(check(Some(1000), "", None) && check(Some(0), "", Some(7)));
        assert!(!check(Some(0), "", None) && !check(None, "", None) && !check(None, "web", None));
    }
}
