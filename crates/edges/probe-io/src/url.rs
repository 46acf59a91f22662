//! Where does an HTTP check go, and where does a redirect lead?
//!
//! Only what probes need of URLs: paths as users write them become request targets, and `Location`
//! headers are resolved against the address they came from.

use std::fmt;

/// Whether a check is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// An address to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Plain or encrypted.
    pub scheme: Scheme,
    /// A host name or an address without brackets.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// Path and query, ready for a request line.
    pub target: String,
}

impl Url {
    /// The value of the `Host` header: the port is always named, as the kubelet does.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(out, "{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Why a `Location` leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLocation {
    /// Not `http` or `https`.
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
    /// No host, or a port that is no port.
    #[error("bad address {0:?} in a redirect")]
    Authority(String),
}

/// Makes a request target of a probe's path: the query stays, a fragment goes, and what may not
/// stand in a request line is escaped. A path with a broken escape is taken literally as a whole.
pub fn request_target(path: &str) -> String {
    let broken = has_broken_escape(path) || path.bytes().any(|byte| byte < 0x20 || byte == 0x7f);
    let mut target = String::with_capacity(path.len() + 1);
    if broken {
        if !path.starts_with('/') {
            target.push('/');
        }
        escape(path, b"/", &mut target);
        return target;
    }
    let path = path.split('#').next().unwrap_or_default();
    // Upstream reads the path as a URL reference and replaces its host.
    let path = strip_authority(path);
    if !path.starts_with('/') {
        target.push('/');
    }
    escape(path, b"/?%", &mut target);
    target
}

/// Where `location` leads, seen from `base`.
pub fn resolve(base: &Url, location: &str) -> Result<Url, BadLocation> {
    let location = location.trim();
    let location = location.split('#').next().unwrap_or_default();
    if let Some(rest) = location.strip_prefix("//") {
        return absolute(base.scheme, rest);
    }
    if let Some((scheme, rest)) = split_scheme(location) {
        let known = match scheme.to_ascii_lowercase().as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(BadLocation::Scheme(shorten(scheme))),
        };
        let rest = rest
            .strip_prefix("//")
            .ok_or_else(|| BadLocation::Authority(shorten(location)))?;
        return absolute(known, rest);
    }
    let (base_path, base_query) = match base.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (base.target.as_str(), None),
    };
    let (path, query) = match location.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (location, None),
    };
    let (path, query) = if path.is_empty() {
        (base_path.to_owned(), query.or(base_query))
    } else if path.starts_with('/') {
        (without_dots(path), query)
    } else {
        let directory = base_path.rfind('/').map_or("/", |at| &base_path[..=at]);
        (without_dots(&format!("{directory}{path}")), query)
    };
    let whole = match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    Ok(Url {
        target: request_target(&whole),
        ..base.clone()
    })
}

fn absolute(scheme: Scheme, rest: &str) -> Result<Url, BadLocation> {
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let bad = || BadLocation::Authority(shorten(authority));
    let host_port = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = match host_port.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').ok_or_else(bad)?,
        None => host_port.split_at(host_port.find(':').unwrap_or(host_port.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => scheme.default_port(),
        None => return Err(bad()),
        Some("") => scheme.default_port(),
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?,
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%~".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) {
        return Err(bad());
    }
    Ok(Url {
        scheme,
        host: host.to_ascii_lowercase(),
        port,
        target: request_target(path),
    })
}

fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let first = bytes.next()?;
    let named = first.is_ascii_alphabetic()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    named.then_some((scheme, rest))
}

fn strip_authority(path: &str) -> &str {
    let rest = match path.strip_prefix("//") {
        Some(rest) => rest,
        None => match split_scheme(path).and_then(|(_, rest)| rest.strip_prefix("//")) {
            Some(rest) => rest,
            None => return path,
        },
    };
    rest.find(['/', '?']).map_or("", |at| &rest[at..])
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            other => {
                kept.push(other);
                continue;
            }
        }
        if last {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

fn has_broken_escape(text: &str) -> bool {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    (0..bytes.len()).any(|at| bytes[at] == b'%' && !(hex(at + 1) && hex(at + 2)))
}

fn escape(text: &str, also: &[u8], out: &mut String) {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
        if plain || also.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// A piece of foreign text that is short enough for a message.
fn shorten(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn base() -> Url {
        Url {
            scheme: Scheme::Http,
            host: "10.0.0.1".into(),
            port: 8080,
            target: "/a/b?q=1".into(),
        }
    }

    #[test]
    fn paths_become_request_targets() {
        let table = [
            ("/", "/"),
            ("", "/"),
            ("healthz", "/healthz"),
            ("/a?x=1&y=2", "/a?x=1&y=2"),
            ("/a#part", "/a"),
            ("/a b", "/a%20b"),
            ("/a%20b", "/a%20b"),
            ("/100%", "/100%25"),
            ("/100%?x#y", "/100%25%3Fx%23y"),
            ("/a\r\nHost: evil", "/a%0D%0AHost:%20evil"),
            ("http://elsewhere/x?y", "/x?y"),
            ("/ü", "/%C3%BC"),
        ];
        for (path, target) in table {
            assert_eq!(request_target(path), target, "{path:?}");
        }
    }

    #[test]
    fn locations_are_resolved_against_where_they_came_from() {
        let table = [
            ("/new", "http://10.0.0.1:8080/new"),
            ("new", "http://10.0.0.1:8080/a/new"),
            ("../new/./x/..", "http://10.0.0.1:8080/new/"),
            ("?z", "http://10.0.0.1:8080/a/b?z"),
            ("", "http://10.0.0.1:8080/a/b?q=1"),
            ("https://10.0.0.1/x", "https://10.0.0.1:443/x"),
            ("HTTP://Example.COM:81", "http://example.com:81/"),
            ("//other/x#y", "http://other:80/x"),
            ("http://user:secret@10.0.0.1:9/", "http://10.0.0.1:9/"),
            ("http://[fd00::1]:9/z", "http://[fd00::1]:9/z"),
        ];
        for (location, target) in table {
            assert_eq!(
                resolve(&base(), location).map(|url| url.to_string()),
                Ok(target.to_owned()),
                "{location}"
            );
        }
        assert!(matches!(
            resolve(&base(), "ftp://x/"),
            Err(BadLocation::Scheme(_))
        ));
        for bad in [
            "http://",
            "http://:80/",
            "http://x:0/",
            "http://x:99999/",
            "http://[fd00::1/",
            "http:x",
        ] {
            assert!(
                matches!(resolve(&base(), bad), Err(BadLocation::Authority(_))),
                "{bad}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn nothing_escapes_the_request_line(text in any::<String>()) {
            let check = |target: &str| target.starts_with('/') && target.bytes().all(|byte| (0x21..0x7f).contains(&byte));
            prop_assert!(check(&request_target(&text)));
            if let Ok(url) = resolve(&base(), &text) {
                prop_assert!(check(&url.target));
                prop_assert!(url.host.bytes().all(|byte| (0x21..0x7f).contains(&byte)));
            }
        }
    }
}
