//! What do a few kinds fill in that depends on their other fields?

use crate::field_error::{FieldError, FieldErrors};
use crate::value::{at, bool_at, map_at, set, set_default, str_at};
use serde_json::{Value, json};

/// A Job that names neither number runs one pod once.
pub(crate) fn default_job(job: &mut Value) {
    let unset = |field| at(job, &["spec", field]).is_none();
    if unset("completions") && unset("parallelism") {
        set(job, &["spec", "completions"], 1);
    }
    set_default(job, &["spec", "parallelism"], 1);
    labels_of_template(job);
}

/// The controller finds the pods of a Job by its identity, unless the author chose labels.
pub(crate) fn generate_selector(job: &mut Value) {
    if bool_at(job, &["spec", "manualSelector"]) == Some(true) {
        return;
    }
    let uid = str_at(job, &["metadata", "uid"]).to_owned();
    let name = str_at(job, &["metadata", "name"]).to_owned();
    for (key, value) in [
        ("batch.kubernetes.io/controller-uid", &uid),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/job-name", &name),
        ("job-name", &name),
    ] {
        set(
            job,
            &["spec", "template", "metadata", "labels", key],
            value.clone(),
        );
    }
    let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    set(job, &["spec", "selector"], selector);
}

pub(crate) fn validate_job(job: &Value, errors: &mut FieldErrors) {
    let policy = str_at(job, &["spec", "template", "spec", "restartPolicy"]);
    if !matches!(policy, "OnFailure" | "Never") {
        errors.push(FieldError::required(
            "spec.template.spec.restartPolicy",
            "valid values: \"OnFailure\", \"Never\"",
        ));
    }
}

/// A ReplicationController without selector or labels takes those of its template.
pub(crate) fn default_replication_controller(controller: &mut Value) {
    labels_of_template(controller);
    if let Some(labels) = template_labels(controller) {
        set_default(controller, &["spec", "selector"], labels);
    }
}

fn labels_of_template(object: &mut Value) {
    if map_at(object, &["metadata", "labels"]).is_none_or(serde_json::Map::is_empty)
        && let Some(labels) = template_labels(object)
    {
        set(object, &["metadata", "labels"], labels);
    }
}

fn template_labels(object: &Value) -> Option<Value> {
    let labels = at(object, &["spec", "template", "metadata", "labels"])?;
    labels.as_object().filter(|labels| !labels.is_empty())?;
    Some(labels.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_finds_its_pods_by_its_identity() {
        let mut job = json!({"metadata": {"name": "j", "uid": "u"},
                             "spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
        default_job(&mut job);
        generate_selector(&mut job);
        assert_eq!(job["spec"]["completions"], 1);
        assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
        assert_eq!(
            job["spec"]["selector"]["matchLabels"]["batch.kubernetes.io/controller-uid"],
            "u"
        );
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
        let mut queue = json!({"spec": {"parallelism": 3}});
        default_job(&mut queue);
        assert_eq!(queue["spec"], json!({"parallelism": 3}));
    }
}
