//! Which links of an answer lead to the program again, for a client that sees it below the `proxy` of an object?
//!
//! A program writes links as if everything of its address were its own. Those that begin at the root get the path before them
//! below which the client sees the program, in `Location` and in pages of HTML (upstream's rule). Whatever else a page says
//! stays as it is, byte by byte: the page is not parsed, only its tags are found.

use crate::http::body::Body;
use crate::read::log::chunks;
use crate::request::Request;
use bytes::BytesMut;
use futures::StreamExt;
use http::{HeaderMap, header};
use hyper::body::Incoming;

/// Larger pages are passed on as they are.
const LARGEST: usize = 1 << 20;

/// Attributes that are addresses.
const ATTRIBUTES: [&[u8]; 14] = [
    b"action",
    b"background",
    b"cite",
    b"codebase",
    b"data",
    b"formaction",
    b"href",
    b"icon",
    b"longdesc",
    b"manifest",
    b"poster",
    b"profile",
    b"src",
    b"usemap",
];

/// Elements whose text is not HTML.
const RAW: [&[u8]; 4] = [b"script", b"style", b"textarea", b"title"];

/// Where a program is seen.
#[derive(Clone, Debug)]
pub struct Links {
    /// The path of the subresource.
    prefix: String,
    /// The program's own host and port.
    authority: String,
}

impl Links {
    pub fn new(prefix: &str, authority: &str) -> Self {
        Self {
            // Two slashes would begin with a host.
            prefix: format!("/{}", prefix.trim_start_matches('/')),
            authority: authority.to_owned(),
        }
    }

    /// What a link becomes; nothing if it stays as it is.
    pub fn moved(&self, link: &[u8]) -> Option<Vec<u8>> {
        let schemes: [&[u8]; 2] = [b"http://", b"https://"];
        let host = schemes.into_iter().find_map(|scheme| link.strip_prefix(scheme));
        let path = match host {
            Some(host) => host.strip_prefix(self.authority.as_bytes())?,
            None => link,
        };
        if !path.starts_with(b"/") || path.starts_with(b"//") {
            return None;
        }
        let known = path.strip_prefix(self.prefix.as_bytes());
        let is_there = known.is_some_and(|rest| matches!(rest.first(), None | Some(b'/' | b'?' | b'#')));
        (!is_there).then(|| [self.prefix.as_bytes(), path].concat())
    }

    /// A page with its links moved.
    pub fn page(&self, html: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(html.len() + html.len() / 8);
        let mut rest = html;
        while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
            let (text, tag) = rest.split_at(at);
            out.extend_from_slice(text);
            let length = match tag {
                [b'<', b'!', b'-', b'-', ..] => copy(tag, until(tag, b"-->"), &mut out),
                [b'<', first, ..] if first.is_ascii_alphabetic() => self.tag(tag, &mut out),
                _ => copy(tag, 1, &mut out),
            };
            rest = &tag[length..];
        }
        out.extend_from_slice(rest);
        out
    }

    /// Writes a tag, and the text in it if that is not HTML. Returns how long both are.
    fn tag(&self, tag: &[u8], out: &mut Vec<u8>) -> usize {
        let mut at = 1 + span(&tag[1..], |byte| !is_gap(byte) && byte != b'>');
        let name = &tag[1..at];
        let mut written = 0;
        loop {
            at += span(&tag[at..], is_gap);
            if tag.get(at).is_none_or(|byte| *byte == b'>') {
                break;
            }
            let attribute = at;
            at += 1 + span(&tag[at + 1..], |byte| {
                !is_gap(byte) && byte != b'>' && byte != b'='
            });
            let attribute = &tag[attribute..at];
            let equals = at + span(&tag[at..], |byte| byte.is_ascii_whitespace());
            if tag.get(equals) != Some(&b'=') {
                continue;
            }
            at = equals + 1;
            at += span(&tag[at..], |byte| byte.is_ascii_whitespace());
            let (start, end) = match tag.get(at).copied() {
                Some(quote @ (b'"' | b'\'')) => {
                    let end = at + 1 + span(&tag[at + 1..], |byte| byte != quote);
                    (at + 1, end)
                }
                _ => (
                    at,
                    at + span(&tag[at..], |byte| !byte.is_ascii_whitespace() && byte != b'>'),
                ),
            };
            at = (end + usize::from(start > at)).min(tag.len());
            let is_link = ATTRIBUTES
                .iter()
                .any(|known| known.eq_ignore_ascii_case(attribute));
            if let Some(moved) = is_link.then(|| self.moved(&tag[start..end])).flatten() {
                out.extend_from_slice(&tag[written..start]);
                out.extend_from_slice(&moved);
                written = end;
            }
        }
        let mut end = (at + 1).min(tag.len());
        if RAW.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            end += raw(&tag[end..], name);
        }
        out.extend_from_slice(&tag[written..end]);
        end
    }
}

/// Whether an answer is a page that can be read.
pub fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(header::HeaderValue::as_bytes);
    let is_html = |kind: &[u8]| {
        let name = kind.split(|byte| *byte == b';').next().unwrap_or(kind);
        name.trim_ascii().eq_ignore_ascii_case(b"text/html")
    };
    kind.is_some_and(is_html) && !headers.contains_key(header::CONTENT_ENCODING)
}

/// The page that an answer is, with its links moved unless it is too large.
pub async fn pass(body: Incoming, links: &Links, request: &Request) -> Body {
    let mut chunks = Box::pin(chunks(body));
    let mut page = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        page.extend_from_slice(&chunk);
        if page.len() > LARGEST {
            let first = futures::stream::iter([page.freeze()]);
            return Body::stream(Box::pin(first.chain(chunks)));
        }
    }
    Body::whole(request.work.on(page.len(), || links.page(&page)).await)
}

/// How many bytes there are before the first that does not fit.
fn span(bytes: &[u8], fits: impl Fn(u8) -> bool) -> usize {
    let end = bytes.iter().position(|byte| !fits(*byte));
    end.unwrap_or(bytes.len())
}

/// What attributes have between them.
fn is_gap(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == b'/'
}

/// How long it is up to and with the end.
fn until(bytes: &[u8], end: &[u8]) -> usize {
    let found = bytes.windows(end.len()).position(|window| window == end);
    found.map_or(bytes.len(), |at| at + end.len())
}

/// How long the text of an element is that is not HTML.
fn raw(bytes: &[u8], name: &[u8]) -> usize {
    let ends = |window: &[u8]| window.starts_with(b"</") && window[2..].eq_ignore_ascii_case(name);
    let found = bytes.windows(name.len() + 2).position(ends);
    found.unwrap_or(bytes.len())
}

fn copy(bytes: &[u8], length: usize, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&bytes[..length]);
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/a/pods/x/proxy";

    fn links() -> Links {
        Links::new(PREFIX, "10.0.0.7:80")
    }

    #[test]
    fn links_from_the_root_lead_below_the_object_and_others_stay() {
        let moved = |link: &str| {
            links()
                .moved(link.as_bytes())
                .map(|it| String::from_utf8(it).unwrap())
        };
        for (link, path) in [
            ("/", "/"),
            ("/a?b=/c#d", "/a?b=/c#d"),
            ("http://10.0.0.7:80/a", "/a"),
            (
                "/api/v1/namespaces/a/pods/x/proxying",
                "/api/v1/namespaces/a/pods/x/proxying",
            ),
        ] {
            assert_eq!(moved(link), Some(format!("{PREFIX}{path}")), "{link}");
        }
        let there = format!("{PREFIX}/a");
        for link in [
            "",
            "a/b",
            "../a",
            "#a",
            "//cdn/a.js",
            "https://example.org/a",
            "http://10.0.0.7:801/a",
            "mailto:a",
            &there,
            PREFIX,
        ] {
            assert_eq!(moved(link), None, "{link}");
        }
    }

    #[test]
    fn only_links_of_tags_change() {
        let page = |html: &str| String::from_utf8(links().page(html.as_bytes())).unwrap();
        for (html, expected) in [
            ("<a href=\"/b\">/c</a>", "<a href=\"PREFIX/b\">/c</a>"),
            ("<A HREF = '/b' title='/t'>", "<A HREF = 'PREFIX/b' title='/t'>"),
            ("<img src=/a/b.png/><p>", "<img src=PREFIX/a/b.png/><p>"),
            (
                "<form method=post\n action=\"/x?a=%20\"/>",
                "<form method=post\n action=\"PREFIX/x?a=%20\"/>",
            ),
            (
                "<a b href=\"/1\" c=d src='/2'>",
                "<a b href=\"PREFIX/1\" c=d src='PREFIX/2'>",
            ),
        ] {
            assert_eq!(page(html), expected.replace("PREFIX", PREFIX), "{html}");
        }
        for html in [
            "",
            "a < b href=\"/c\"",
            "</a href=\"/c\">",
            "<!-- <a href=\"/b\"> -->",
            "<script src=x>if (a < b) '<a href=\"/b\">'</script>",
            "<style>a::after { content: '<a href=\"/\">' }",
            "<a title=\" href='/b' \">",
            "<a href",
            "<a href=",
            "<a href=\"",
            "<a href=\"c",
            "<a =/b>",
            "\u{e4}<p>\u{1f600}",
        ] {
            assert_eq!(page(html), html);
        }
        let two = "<title><a href=/></TITLE ><a href=/>";
        assert_eq!(page(two), format!("<title><a href=/></TITLE ><a href={PREFIX}/>"));
    }

    #[test]
    fn pages_are_html_that_is_not_packed() {
        let is_page = |pairs: &[(header::HeaderName, &str)]| {
            let pairs = pairs.iter().cloned();
            is_page(
                &pairs
                    .map(|(name, value)| (name, value.parse().unwrap()))
                    .collect(),
            )
        };
        assert!(is_page(&[(header::CONTENT_TYPE, "text/html")]));
        assert!(is_page(&[(header::CONTENT_TYPE, "Text/HTML; charset=utf-8")]));
        assert!(!is_page(&[(header::CONTENT_TYPE, "text/html5")]));
        assert!(!is_page(&[]));
        let packed = [
            (header::CONTENT_TYPE, "text/html"),
            (header::CONTENT_ENCODING, "gzip"),
        ];
        assert!(!is_page(&packed));
    }
}
