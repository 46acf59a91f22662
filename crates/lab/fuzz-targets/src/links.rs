//! Pages of programs that are read through the API server.

use pointsman_api_server::connect::links::Links;

const PREFIX: &str = "/api/v1/namespaces/a/pods/x:80/proxy";
const AUTHORITY: &str = "10.0.0.7:80";

/// A page whose links were moved has none that would be moved again, and says the same without what was put before them.
pub(crate) fn run(input: &[u8]) {
    let links = Links::new(PREFIX, AUTHORITY);
    let moved = links.page(input);
    assert!(links.page(&moved) == moved, "links are moved twice");
    let without = |page: &[u8]| String::from_utf8_lossy(page).replace(PREFIX, "");
    // Of its own address only the path stays.
    if !without(input).contains(AUTHORITY) {
        assert_eq!(without(&moved), without(input));
    }
}
