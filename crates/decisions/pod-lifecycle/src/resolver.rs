//! What does a pod's `/etc/resolv.conf` say?
//!
//! As the kubelet decides it: `dnsPolicy` says where to begin, `dnsConfig` is added to that.

use pointsman_objects::pod_manifest::PodManifest;
use std::net::IpAddr;

/// The most name servers that resolvers take notice of.
const MOST_SERVERS: usize = 3;
/// The most domains of a search, and their characters.
const MOST_SEARCHES: usize = 32;
const LONGEST_SEARCH: usize = 2048;

/// Where pods ask about names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDns {
    /// The cluster's own name servers; without any, pods have those of their node.
    pub servers: Vec<IpAddr>,
    /// Such as `cluster.local`.
    pub domain: String,
}

impl Default for ClusterDns {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            domain: "cluster.local".to_owned(),
        }
    }
}

/// The content of such a file, as far as it matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Resolver {
    servers: Vec<String>,
    searches: Vec<String>,
    /// Each with its value, which may be empty.
    options: Vec<(String, String)>,
}

/// The content of the pod's file, beside a node whose own is `host`; none if it is the node's own, unchanged.
pub fn resolv_conf(pod: &PodManifest, cluster: &ClusterDns, host: &str) -> Option<String> {
    let spec = &pod.spec;
    let is_cluster_first = match spec.dns_policy.as_str() {
        "ClusterFirst" | "" => !spec.host_network,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    let own = spec.dns_config.as_ref();
    let mut resolver = if spec.dns_policy == "None" {
        own?;
        Resolver::default()
    } else if is_cluster_first && !cluster.servers.is_empty() {
        Resolver::of_cluster(&pod.metadata.namespace, cluster, Resolver::read(host))
    } else {
        own?;
        Resolver::read(host)
    };
    if let Some(own) = own {
        resolver.servers.extend(own.nameservers.iter().cloned());
        resolver.searches.extend(own.searches.iter().cloned());
        for option in &own.options {
            resolver.options.retain(|(name, _)| *name != option.name);
            resolver.options.push((option.name.clone(), option.value.clone()));
        }
    }
    Some(resolver.write())
}

impl Resolver {
    fn of_cluster(namespace: &str, cluster: &ClusterDns, host: Self) -> Self {
        let domain = &cluster.domain;
        let mut searches = vec![
            format!("{namespace}.svc.{domain}"),
            format!("svc.{domain}"),
            domain.clone(),
        ];
        searches.extend(host.searches);
        Self {
            servers: cluster.servers.iter().map(IpAddr::to_string).collect(),
            searches,
            options: vec![("ndots".to_owned(), "5".to_owned())],
        }
    }

    fn read(text: &str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => read.servers.extend(words.next().map(Into::into)),
                // The last one counts.
                Some("search") => read.searches = words.filter(|it| *it != ".").map(Into::into).collect(),
                Some("options") => read.options.extend(words.map(|word| {
                    let (name, value) = word.split_once(':').unwrap_or((word, ""));
                    (name.to_owned(), value.to_owned())
                })),
                _ => {}
            }
        }
        read
    }

    /// What resolvers would not read is left out.
    fn write(mut self) -> String {
        self.servers = without_duplicates(self.servers);
        self.servers.truncate(MOST_SERVERS);
        self.searches = without_duplicates(self.searches);
        self.searches.truncate(MOST_SEARCHES);
        while self.searches.join(" ").len() > LONGEST_SEARCH {
            self.searches.pop();
        }
        let mut text = String::new();
        if !self.searches.is_empty() {
            text.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in &self.servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        let options = self.options.iter().map(|(name, value)| match value.as_str() {
            "" => name.clone(),
            value => format!("{name}:{value}"),
        });
        let options: Vec<String> = options.collect();
        if !options.is_empty() {
            text.push_str(&format!("options {}\n", options.join(" ")));
        }
        text
    }
}

fn without_duplicates(words: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for word in words {
        if !kept.contains(&word) {
            kept.push(word);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const HOST: &str = "# ours\nnameserver 192.0.2.1\nsearch corp.example .\noptions timeout:1 rotate\n";

    fn written(spec: Value, servers: &[&str]) -> Option<String> {
        let pod = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
        let cluster = ClusterDns {
            servers: servers.iter().map(|it| it.parse().unwrap()).collect(),
            ..ClusterDns::default()
        };
        resolv_conf(&serde_json::from_value(pod).unwrap(), &cluster, HOST)
    }

    #[test]
    fn pods_ask_the_cluster_first_if_it_has_somebody_to_ask() {
        let expected = "search shop.svc.cluster.local svc.cluster.local cluster.local corp.example\n\
                        nameserver 10.3.0.10\noptions ndots:5\n";
        for spec in [
            json!({"dnsPolicy": "ClusterFirst"}),
            json!({}),
            json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
        ] {
            assert_eq!(written(spec.clone(), &["10.3.0.10"]).as_deref(), Some(expected));
            assert_eq!(written(spec, &[]), None);
        }
        for spec in [
            json!({"dnsPolicy": "Default"}),
            json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
        ] {
            assert_eq!(written(spec, &["10.3.0.10"]), None, "the node's own file");
        }
    }

    #[test]
    fn what_the_pod_says_is_added() {
        let own = json!({
            "nameservers": ["192.0.2.7", "192.0.2.1"], "searches": ["own.example"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}, {"name": "timeout", "value": "3"}],
        });
        let with = |policy: &str| written(json!({"dnsPolicy": policy, "dnsConfig": own}), &["10.3.0.10"]);
        assert_eq!(
            with("None").unwrap(),
            "search own.example\nnameserver 192.0.2.7\nnameserver 192.0.2.1\noptions ndots:2 edns0 timeout:3\n"
        );
        assert_eq!(
            with("Default").unwrap(),
            "search corp.example own.example\nnameserver 192.0.2.1\nnameserver 192.0.2.7\n\
             options rotate ndots:2 edns0 timeout:3\n"
        );
        assert_eq!(
            with("ClusterFirst").unwrap(),
            "search shop.svc.cluster.local svc.cluster.local cluster.local corp.example own.example\n\
             nameserver 10.3.0.10\nnameserver 192.0.2.7\nnameserver 192.0.2.1\noptions ndots:2 edns0 timeout:3\n"
        );
    }

    #[test]
    fn what_resolvers_would_not_read_is_left_out() {
        let servers: Vec<String> = (1..6).map(|last| format!("192.0.2.{last}")).collect();
        let searches: Vec<String> = (0..40)
            .map(|number| format!("d{number}.{}", "x".repeat(60)))
            .collect();
        let own = json!({"nameservers": servers, "searches": searches});
        let text = written(json!({"dnsPolicy": "None", "dnsConfig": own}), &[]).unwrap();
        assert_eq!(text.matches("nameserver").count(), MOST_SERVERS);
        let search = text.lines().next().unwrap();
        assert!(search.len() <= "search ".len() + LONGEST_SEARCH);
        assert_eq!(search.split(' ').count() - 1, 31);
    }
}
