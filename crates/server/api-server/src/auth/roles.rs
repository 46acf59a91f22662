//! Which rights do upstream's own programs expect to find?
//!
//! Data: `roles.txt`, whose head describes the format.

use super::bootstrap::{cluster_role, object, paths, rule};
use super::rbac;
use pointsman_rules::value;
use serde_json::{Value, json};

const TEXT: &str = include_str!("roles.txt");

/// All roles and bindings of the file.
pub fn of_programs() -> Vec<Value> {
    read(TEXT).expect("roles.txt is part of the program and tested")
}

/// One role while its lines are read.
struct Draft<'a> {
    namespace: &'a str,
    name: &'a str,
    rules: Vec<Value>,
    subjects: Vec<Value>,
}

impl Draft<'_> {
    fn finish(self, objects: &mut Vec<Value>) {
        let kind = if self.namespace.is_empty() {
            "ClusterRole"
        } else {
            "Role"
        };
        let mut made = vec![match kind {
            "ClusterRole" => cluster_role(self.name, self.rules),
            _ => object(kind, self.name, json!({"rules": self.rules})),
        }];
        if !self.subjects.is_empty() {
            let role = json!({"apiGroup": rbac::GROUP, "kind": kind, "name": self.name});
            let body = json!({"subjects": self.subjects, "roleRef": role});
            made.push(object(&format!("{kind}Binding"), self.name, body));
        }
        if !self.namespace.is_empty() {
            for object in &mut made {
                value::set(object, &["metadata", "namespace"], self.namespace);
            }
        }
        objects.extend(made);
    }
}

fn read(text: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    let mut open: Option<Draft<'_>> = None;
    for line in text.lines().filter(|line| !line.starts_with("//")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["role", name] = words.as_slice() {
            let (namespace, name) = name.split_once('/').unwrap_or(("", name));
            let next = Draft {
                namespace,
                name,
                rules: Vec::new(),
                subjects: Vec::new(),
            };
            if let Some(done) = open.replace(next) {
                done.finish(&mut objects);
            }
            continue;
        }
        let bad = || format!("roles.txt: {line:?} is not understood");
        match (words.as_slice(), &mut open) {
            ([], _) => {}
            (["to", kind, who], Some(role)) => role.subjects.push(subject(kind, who).ok_or_else(bad)?),
            ([verbs, urls], Some(role)) => role.rules.push(paths(&split(urls), &split(verbs))),
            ([verbs, groups, resources, names @ ..], Some(role)) => {
                let groups: Vec<&str> = split(groups)
                    .into_iter()
                    .map(|group| if group == "core" { "" } else { group })
                    .collect();
                let mut made = rule(&groups, &split(resources), &split(verbs));
                if let [names] = names {
                    made["resourceNames"] = json!(split(names));
                }
                role.rules.push(made);
            }
            _ => return Err(bad()),
        }
    }
    if let Some(done) = open {
        done.finish(&mut objects);
    }
    Ok(objects)
}

fn split(list: &str) -> Vec<&str> {
    list.split(',').collect()
}

fn subject(kind: &str, who: &str) -> Option<Value> {
    Some(match kind {
        "user" => json!({"apiGroup": rbac::GROUP, "kind": "User", "name": who}),
        "group" => json!({"apiGroup": rbac::GROUP, "kind": "Group", "name": who}),
        "account" => {
            let (namespace, name) = who.split_once('/')?;
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_reads_as_roles_and_bindings() {
        let objects = of_programs();
        let named = |kind: &str, name: &str| {
            let found = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects
                .iter()
                .find(found)
                .unwrap_or_else(|| panic!("{kind} {name}"))
        };
        let binding = named("ClusterRoleBinding", "system:controller:job-controller");
        assert_eq!(
            binding["subjects"],
            json!([{"kind": "ServiceAccount", "name": "job-controller", "namespace": "kube-system"}])
        );
        let scheduler = named("ClusterRole", "system:kube-scheduler");
        let lease = json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
            "resourceNames": ["kube-scheduler"], "verbs": ["get", "list", "update", "watch"]});
        assert!(scheduler["rules"].as_array().unwrap().contains(&lease));
        let election = named("Role", "system::leader-locking-kube-scheduler");
        assert_eq!(election["metadata"]["namespace"], "kube-system");
        assert!(read("role a\n  get\n").is_err() && read("  get core pods\n").is_err());
    }
}
