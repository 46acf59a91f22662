use super::*;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn names(listen: [u8; 4]) -> ServingNames {
    ServingNames::new(
        &[listen.into()],
        &[[10, 96, 0, 1].into()],
        &["api.example".into(), "192.0.2.9".into()],
    )
}

#[test]
fn a_restart_finds_the_same_material() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pki");
    let make = || {
        let pki = Pki::open(&path, now()).unwrap();
        let serving = pki.serving(&names([192, 0, 2, 1]), now()).unwrap();
        let admin = pki.client("admin", &Identity::admin(), now()).unwrap();
        (pki.ca_pem().to_owned(), serving, admin)
    };
    let first = make();
    assert_eq!(first, make());
}

#[test]
fn keys_are_readable_by_their_owner_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pki");
    let pki = Pki::open(&path, now()).unwrap();
    pki.serving(&names([192, 0, 2, 1]), now()).unwrap();
    let mode = |name: &str| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode("."), mode("ca.key"), mode("apiserver.key")),
        (0o700, 0o600, 0o600)
    );
    let shown = format!(
        "{pki:?} {:?}",
        pki.client("admin", &Identity::admin(), now()).unwrap()
    );
    assert!(!shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn the_serving_certificate_follows_the_listen_address_and_its_age() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), now()).unwrap();
    let first = pki.serving(&names([192, 0, 2, 1]), now()).unwrap();
    let facts = Facts::read(&first.certificate_pem).unwrap();
    for name in ["localhost", "kubernetes.default.svc.cluster.local", "api.example"] {
        assert!(facts.names.contains(name), "{name}");
    }
    for address in ["127.0.0.1", "::1", "192.0.2.1", "10.96.0.1", "192.0.2.9"] {
        assert!(facts.addresses.contains(&address.parse().unwrap()), "{address}");
    }
    let moved = pki.serving(&names([192, 0, 2, 2]), now()).unwrap();
    assert_ne!(first.certificate_pem, moved.certificate_pem);
    // Fewer names than the certificate has are covered by it.
    let fewer = pki
        .serving(&ServingNames::new(&[], &[], &[]), now() + 200 * DAY)
        .unwrap();
    assert_eq!(fewer.certificate_pem, moved.certificate_pem);
    let renewed = pki
        .serving(&ServingNames::new(&[], &[], &[]), now() + 280 * DAY)
        .unwrap();
    assert_ne!(renewed.certificate_pem, moved.certificate_pem);
}

#[test]
fn a_pair_that_does_not_fit_together_is_issued_again() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), now()).unwrap();
    let first = pki.client("proxy", &Identity::proxy(), now()).unwrap();
    let other = pki.client("sli", &Identity::sli(), now()).unwrap();
    // As after a crash that replaced the key but not the certificate.
    fs::copy(&other.key_path, &first.key_path).unwrap();
    let again = pki.client("proxy", &Identity::proxy(), now()).unwrap();
    assert_ne!(again.certificate_pem, first.certificate_pem);
    let renamed = pki.client("proxy", &Identity::controllers(), now()).unwrap();
    assert_eq!(
        Facts::read(&renamed.certificate_pem)
            .unwrap()
            .common_name
            .as_deref(),
        Some("system:pointsman-controllers")
    );
}

#[test]
fn leaves_of_another_authority_are_issued_again() {
    let dir = tempfile::tempdir().unwrap();
    let old = Pki::open(dir.path(), now()).unwrap();
    let first = old.client("admin", &Identity::admin(), now()).unwrap();
    // An operator who wants another authority removes the old one.
    fs::remove_file(dir.path().join("ca.crt")).unwrap();
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    let new = Pki::open(dir.path(), now()).unwrap();
    assert_ne!(old.ca_pem(), new.ca_pem());
    let again = new.client("admin", &Identity::admin(), now()).unwrap();
    assert_ne!(first.certificate_pem, again.certificate_pem);
}

#[test]
fn an_authority_near_its_end_or_past_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let files = || ["ca.crt", "ca.key"].map(|name| fs::read_to_string(dir.path().join(name)).unwrap());
    let first = Pki::open(dir.path(), now()).unwrap();
    let admin = first.client("admin", &Identity::admin(), now()).unwrap();
    let before = files();
    for later in [CA_LIFE - 80 * DAY, CA_LIFE - DAY, CA_LIFE + DAY] {
        let again = Pki::open(dir.path(), now() + later).unwrap();
        assert_eq!(again.ca_pem(), first.ca_pem(), "{later:?}");
        assert_eq!(files(), before, "{later:?}");
    }
    let warning = |now| {
        let facts = Facts::read(&before[0]).unwrap();
        end_warning(&dir.path().join("ca.crt"), &facts, now)
    };
    assert_eq!(warning(now() + CA_LIFE - 100 * DAY), None);
    let said = warning(now() + CA_LIFE - 80 * DAY).unwrap();
    let end = jiff::Timestamp::try_from(now() + CA_LIFE).unwrap();
    for part in [
        &*dir.path().join("ca.crt").to_string_lossy(),
        &end.to_string(),
        "pointsman ca rotate",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // Whoever trusts the authority is still let in.
    let same = first.client("admin", &Identity::admin(), now()).unwrap();
    assert_eq!(same.certificate_pem, admin.certificate_pem);
}

#[test]
fn a_damaged_authority_is_an_error_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    Pki::open(dir.path(), now()).unwrap();
    fs::write(dir.path().join("ca.crt"), "garbage").unwrap();
    assert!(matches!(
        Pki::open(dir.path(), now()),
        Err(PkiError::Authority { .. })
    ));
    assert_eq!(fs::read_to_string(dir.path().join("ca.crt")).unwrap(), "garbage");
    // A key alone is what a crash during the first start leaves.
    fs::remove_file(dir.path().join("ca.crt")).unwrap();
    Pki::open(dir.path(), now()).unwrap();
    fs::remove_file(dir.path().join("ca.key")).unwrap();
    assert!(matches!(
        Pki::open(dir.path(), now()),
        Err(PkiError::Authority { .. })
    ));
}

#[test]
fn two_groups_fit_and_three_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path(), now()).unwrap();
    let pair = pki
        .client("x", &Identity::new("x", &["one", "two"]), now())
        .unwrap();
    assert_eq!(
        Facts::read(&pair.certificate_pem).unwrap().organizations,
        ["one", "two"]
    );
    assert!(
        pki.client("y", &Identity::new("y", &["1", "2", "3"]), now())
            .is_err()
    );
    assert!(pki.client("../y", &Identity::sli(), now()).is_err());
}
