//! Who may ask this node for what?

use http::HeaderMap;
use pointsman_api_client::Client;
use pointsman_guard::{Reviews, Right, User};

/// Asks the API server whose a token is and who may do what, and remembers what it said. Tokens are those for the API
/// server itself, as with the kubelet: one that was made to read metrics only does not open programs.
pub(crate) struct Access {
    reviews: Reviews,
    node: String,
}

impl Access {
    pub(crate) fn new(client: Client, node: &str) -> Self {
        Self {
            reviews: Reviews::new(client, None),
            node: node.to_owned(),
        }
    }

    /// Whom a request speaks for.
    pub(crate) async fn who(&self, certificate: Option<&User>, head: &HeaderMap) -> Option<User> {
        self.reviews.who(certificate, head).await
    }

    /// Whether a user may do what a path begins with.
    pub(crate) async fn allows(&self, user: &User, path: &str) -> bool {
        // Who may do everything may do this too, even while no API server can be asked.
        if user.groups.iter().any(|group| group == "system:masters") {
            return true;
        }
        self.reviews.allows(user, &right(path, &self.node)).await
    }
}

/// What a path is authorized as (the kubelet's table). Who talks to programs changes something, whatever the method of the
/// request; with the kubelet, the right to read is enough for a WebSocket.
fn right(path: &str, node: &str) -> Right {
    let (verb, subresource) = match path {
        "exec" | "attach" | "portForward" => ("create", "proxy"),
        "metrics" => ("get", "metrics"),
        "stats" => ("get", "stats"),
        "logs" => ("get", "log"),
        "configz" => ("get", "configz"),
        "pods" => ("get", "pods"),
        _ => ("get", "proxy"),
    };
    Right::Node {
        verb,
        subresource,
        name: node.to_owned(),
    }
}
