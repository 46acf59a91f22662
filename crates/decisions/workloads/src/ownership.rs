//! Which objects belong to a controller, which should it adopt, and which let go?

use pointsman_objects::OwnerReference;

/// What a controller makes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is the controller's already.
    Owned,
    /// Nobody controls it and the selector matches: to be adopted.
    Adopt,
    /// It is the controller's, and the selector matches no longer: to be let go.
    Release,
    /// None of the controller's business.
    Other,
}

/// Decides about one object. A controller that is being deleted neither adopts nor releases, and
/// nobody adopts what is being deleted.
pub fn claim(
    uid: &str,
    controller_deleting: bool,
    owners: &[OwnerReference],
    matches: bool,
    object_deleting: bool,
) -> Claim {
    match owners.iter().find(|owner| owner.controller) {
        Some(owner) if *owner.uid == *uid && matches => Claim::Owned,
        Some(owner) if *owner.uid == *uid && !controller_deleting => Claim::Release,
        Some(_) => Claim::Other,
        None if matches && !controller_deleting && !object_deleting => Claim::Adopt,
        None => Claim::Other,
    }
}
