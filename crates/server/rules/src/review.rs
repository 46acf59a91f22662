//! Which questions can be asked through the API?
//!
//! A review is a kind that can only be created and is never stored: a question and its answer.

use crate::kind::Scope;

/// What a review asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Who am I?
    SelfSubject,
    /// May I do this?
    SelfAccess,
    /// What may I in this namespace?
    SelfRules,
    /// Whose token is this?
    Token,
    /// May they do this?
    Access,
    /// May they in this namespace?
    LocalAccess,
}

/// One served review.
#[derive(Debug, PartialEq, Eq)]
pub struct Review {
    pub question: Question,
    pub group: &'static str,
    /// The `kind` field.
    pub kind: &'static str,
    /// The resource name in URLs.
    pub plural: &'static str,
    pub scope: Scope,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

/// Every served review.
pub static REVIEWS: &[Review] = &[
    Review {
        question: Question::SelfSubject,
        group: AUTHENTICATION,
        kind: "SelfSubjectReview",
        plural: "selfsubjectreviews",
        scope: Scope::Cluster,
    },
    Review {
        question: Question::Token,
        group: AUTHENTICATION,
        kind: "TokenReview",
        plural: "tokenreviews",
        scope: Scope::Cluster,
    },
    Review {
        question: Question::LocalAccess,
        group: AUTHORIZATION,
        kind: "LocalSubjectAccessReview",
        plural: "localsubjectaccessreviews",
        scope: Scope::Namespaced,
    },
    Review {
        question: Question::SelfAccess,
        group: AUTHORIZATION,
        kind: "SelfSubjectAccessReview",
        plural: "selfsubjectaccessreviews",
        scope: Scope::Cluster,
    },
    Review {
        question: Question::SelfRules,
        group: AUTHORIZATION,
        kind: "SelfSubjectRulesReview",
        plural: "selfsubjectrulesreviews",
        scope: Scope::Cluster,
    },
    Review {
        question: Question::Access,
        group: AUTHORIZATION,
        kind: "SubjectAccessReview",
        plural: "subjectaccessreviews",
        scope: Scope::Cluster,
    },
];

impl Review {
    /// The version of every review's group.
    pub const VERSION: &str = "v1";

    /// The resource name for one object.
    pub fn singular(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// Finds a review by its place in a URL.
    pub fn by_resource(group: &str, version: &str, plural: &str) -> Option<&'static Review> {
        let named = |review: &&Review| review.group == group && review.plural == plural;
        REVIEWS.iter().find(named).filter(|_| version == Self::VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_found_by_their_place_in_a_url() {
        for review in REVIEWS {
            assert_eq!(
                Review::by_resource(review.group, "v1", review.plural),
                Some(review)
            );
            assert_eq!(Review::by_resource(review.group, "v2", review.plural), None);
        }
    }
}
