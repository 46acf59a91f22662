//! Kubeconfigs, which users bring along. Only their text is read: an input may name any file and any command.

use kube::config::Kubeconfig;
use pointsman_api_client::kubeconfig::Cluster;

pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let cluster = Cluster::parse(text);
    let whole = Kubeconfig::from_yaml(text);
    if let (Ok(cluster), Ok(whole)) = (cluster, whole) {
        let context = whole
            .contexts
            .iter()
            .find(|named| Some(&named.name) == whole.current_context.as_ref());
        let name = context
            .and_then(|named| named.context.as_ref())
            .map(|context| &context.cluster);
        let named = whole.clusters.iter().find(|named| Some(&named.name) == name);
        let server = named.and_then(|named| named.cluster.as_ref()?.server.clone());
        assert_eq!(server.unwrap_or_default(), cluster.server, "two readers disagree");
    }
}
