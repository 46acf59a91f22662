use super::*;
use crate::auth::authn::{AUTHENTICATED, MASTERS};
use crate::auth::bootstrap;
use pointsman_rules::review::REVIEWS;

fn policy() -> Policy {
    let mut policy = Policy::default();
    bootstrap::defaults()
        .iter()
        .for_each(|object| policy.upsert(object));
    policy
}

fn ask(question: Question, user: &User, namespace: &str, spec: Value) -> Result<Value, ApiError> {
    let review = REVIEWS.iter().find(|review| review.question == question).unwrap();
    let known = (&policy(), &Authenticator::default(), Timestamp::UNIX_EPOCH);
    answer(review, user, namespace, &json!({"spec": spec}), known)
}

#[test]
fn may_i_answers_for_the_caller_with_the_reason() {
    let user = User::new("system:kube-proxy", &[AUTHENTICATED]);
    let spec = json!({"resourceAttributes": {"verb": "list", "resource": "services"}});
    let answer = ask(Question::SelfAccess, &user, "", spec.clone()).unwrap();
    assert_eq!(answer["kind"], "SelfSubjectAccessReview");
    assert_eq!(answer["spec"], spec);
    assert_eq!(
        answer["status"],
        json!({"allowed": true, "reason": "RBAC: allowed by ClusterRoleBinding \"system:node-proxier\" \
            of ClusterRole \"system:node-proxier\" to User \"system:kube-proxy\""})
    );
    let denied = json!({"resourceAttributes": {"verb": "delete", "resource": "services", "namespace": "x"}});
    assert_eq!(
        ask(Question::SelfAccess, &user, "", denied).unwrap()["status"],
        json!({"allowed": false})
    );
    let path = json!({"nonResourceAttributes": {"verb": "get", "path": "/apis/apps"}});
    assert_eq!(
        ask(Question::SelfAccess, &user, "", path).unwrap()["status"]["allowed"],
        true
    );
    let root = User::new("root", &[MASTERS]);
    let all = json!({"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}});
    assert_eq!(
        ask(Question::SelfAccess, &root, "", all).unwrap()["status"]["allowed"],
        true
    );
}

#[test]
fn may_they_answers_for_the_subject_and_checks_the_question() {
    let root = User::new("root", &[MASTERS]);
    let attributes = json!({"verb": "get", "resource": "pods", "namespace": "x"});
    let spec = json!({"user": "alice", "resourceAttributes": attributes});
    assert_eq!(
        ask(Question::Access, &root, "", spec.clone()).unwrap()["status"]["allowed"],
        false
    );
    let grouped = json!({"groups": ["system:masters"], "resourceAttributes": attributes});
    assert_eq!(
        ask(Question::Access, &root, "", grouped).unwrap()["status"]["allowed"],
        true
    );
    let local = ask(Question::LocalAccess, &root, "x", spec.clone()).unwrap();
    assert_eq!(local["metadata"]["namespace"], "x");
    for (review, namespace, bad) in [
        (Question::Access, "", json!({"resourceAttributes": attributes})),
        (Question::Access, "", json!({"user": "alice"})),
        (Question::LocalAccess, "y", spec),
        (
            Question::LocalAccess,
            "y",
            json!({"user": "a", "nonResourceAttributes": {"path": "/x"}}),
        ),
        (Question::SelfAccess, "", Value::Null),
        (Question::SelfAccess, "", json!("text")),
    ] {
        assert_eq!(
            ask(review, &root, namespace, bad.clone()).unwrap_err().code(),
            422,
            "{bad}"
        );
    }
}

#[test]
fn what_may_i_lists_rules_of_both_kinds() {
    let user = User::new("alice", &[AUTHENTICATED]);
    let status = ask(Question::SelfRules, &user, "", json!({"namespace": "x"})).unwrap()["status"].clone();
    let resources: Vec<&Value> = status["resourceRules"].as_array().unwrap().iter().collect();
    assert!(
        resources
            .iter()
            .any(|rule| rule["resources"][0] == "selfsubjectreviews")
    );
    assert!(!status["nonResourceRules"].as_array().unwrap().is_empty());
    assert_eq!(status["incomplete"], false);
    assert_eq!(
        ask(Question::SelfRules, &user, "", json!({})).unwrap_err().code(),
        400
    );
    let root = User::new("root", &[MASTERS]);
    let all = ask(Question::SelfRules, &root, "", json!({"namespace": "x"})).unwrap();
    assert!(
        all["status"]["resourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| rule["resources"][0] == "*")
    );
}

#[test]
fn who_am_i_repeats_the_credential() {
    let mut user = User::new("alice", &["dev"]);
    user.uid = "7".into();
    user.extra.insert("scope".into(), vec!["view".into()]);
    let answer = ask(Question::SelfSubject, &user, "", Value::Null).unwrap();
    assert_eq!(
        answer["status"]["userInfo"],
        json!({"username": "alice", "groups": ["dev"], "uid": "7", "extra": {"scope": ["view"]}})
    );
    assert_eq!(answer["apiVersion"], "authentication.k8s.io/v1");
}
