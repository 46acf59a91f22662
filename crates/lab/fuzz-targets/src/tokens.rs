//! Bearer tokens, and the files of keys that they are verified with.

use pointsman_api_server::auth::accounts::claims::{Claims, World, verified};
use pointsman_api_server::auth::accounts::keys::Keys;
use pointsman_api_server::auth::keyring::sections;
use std::path::Path;
use std::sync::OnceLock;

/// A key that signed nothing.
const KEY: &str = include_str!("../../../server/api-server/testdata/sa-p384.pem");

pub(crate) fn run(input: &[u8]) {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    let path = Path::new("keys");
    let own = || Keys::read((path, &sections(KEY).expect("a PEM file")), &[]).expect("a key");
    let keys = KEYS.get_or_init(own);
    assert!(
        verified(input, &keys.verifiers).is_none(),
        "a forged token is believed"
    );
    if let Ok(claims) = serde_json::from_slice::<Claims>(input) {
        // Nothing that it names exists, whatever it says.
        let world = World {
            now: 1_800_000_000,
            issuers: std::slice::from_ref(&claims.iss),
            audiences: &claims.aud.0,
            own: &claims.aud.0,
            find: &|_, _, _| None,
            holds: &|_, _| true,
        };
        assert_eq!(claims.user(&world), None, "a token of nobody is believed");
    }
    if let Ok(sections) = std::str::from_utf8(input)
        .map(sections)
        .unwrap_or(Err("not text"))
    {
        let _ = Keys::read((path, &sections), &[]);
    }
}
