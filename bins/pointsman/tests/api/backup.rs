//! `pointsman apiserver backup` and `restore`, on the real program.

use pointsman_api_client::connect::{Source, connect};
use pointsman_api_client::{Event, Resource, Scope, Watcher};
use pointsman_harness::wire::{Http, version_of};
use pointsman_harness::{BARE, SOON, Server, config_map, program};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn apiserver(arguments: &[&str], data_dir: &Path, file: &Path) -> Output {
    Command::new(program())
        .arg("apiserver")
        .args(arguments)
        .arg("--data-dir")
        .arg(data_dir)
        .arg(file)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", said(output));
}

fn fails(output: &Output, words: &str) {
    let text = said(output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(words), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// The data of every map of the test, by name.
async fn maps(http: &Http) -> BTreeMap<String, String> {
    let list = http.get(MAPS).await.expect(200);
    let items = list["items"].as_array().unwrap().iter();
    let items = items.map(|map| {
        let name = map["metadata"]["name"].as_str().unwrap().to_owned();
        (name, map["data"].to_string())
    });
    items.filter(|(name, _)| name.starts_with("m-")).collect()
}

#[derive(Clone, Debug, Deserialize)]
struct Anything {}

/// The names that a watcher holds once it has listed again, and the version that it listed.
async fn listed_again(watcher: &mut Watcher<Anything>, held: &mut BTreeMap<String, ()>) -> u64 {
    let listing = async {
        let mut began = false;
        loop {
            match watcher.next().await {
                Event::Init => began = true,
                Event::Applied { key, .. } => drop(held.insert(key.name().to_owned(), ())),
                Event::Deleted { key, .. } => drop(held.remove(key.name())),
                Event::Synced(version) if began => return version.parse().unwrap(),
                Event::Synced(_) => {}
            }
        }
    };
    tokio::time::timeout(SOON, listing)
        .await
        .expect("it lists in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_running_server_is_restored_and_every_watcher_lists_again() {
    let mut server = Server::start_to_be_restarted(&[BARE]).await;
    let http = server.admin().await;
    for n in 0..1200 {
        http.post(MAPS, &config_map(&format!("m-{n:04}"), "before"))
            .await
            .expect(201);
    }
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("saved");
    // Writes go on while the backup is taken: it has each of them or not, and all before it.
    let writer = server.admin().await;
    let writing = tokio::spawn(async move {
        for n in 0.. {
            let map = config_map(&format!("m-during-{n}"), "during");
            if writer.try_post(MAPS, &map).await.is_err() {
                return;
            }
        }
    });
    let (data_dir, to) = (server.data_dir().to_owned(), file.clone());
    let taken = tokio::task::spawn_blocking(move || apiserver(&["backup"], &data_dir, &to)).await;
    succeeds(&taken.unwrap());
    writing.abort();
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a backup is as secret as the cluster");

    let client = connect(&Source::Kubeconfig(server.kubeconfig()), "test")
        .await
        .unwrap();
    let scope = Scope::all(Resource::core("configmaps"));
    let (mut watcher, mut held) = (Watcher::<Anything>::new(client, scope), BTreeMap::new());
    listed_again(&mut watcher, &mut held).await;
    http.delete(&format!("{MAPS}/m-0000")).await.expect(200);
    http.post(MAPS, &config_map("m-late", "after")).await.expect(201);
    let changed = http
        .put(&format!("{MAPS}/m-0001"), &config_map("m-0001", "after"))
        .await;
    let last = version_of(&changed.expect(200)).parse::<u64>().unwrap();

    let restore = |flags: &[&str]| apiserver(&[&["restore"], flags].concat(), server.data_dir(), &file);
    fails(&restore(&["--force"]), "stop the server first");
    server.kill().await;
    let restore = |flags: &[&str]| apiserver(&[&["restore"], flags].concat(), server.data_dir(), &file);
    fails(&restore(&[]), "--force");
    let said_done = server.data_dir().join("pki/encryption.done");
    std::fs::write(&said_done, "said of the store that is replaced").unwrap();
    let done = restore(&["--force"]);
    assert!(
        !said_done.exists(),
        "which keys the backup needs is to be found out"
    );
    succeeds(&done);
    assert!(said(&done).contains("store.redb.replaced"), "{}", said(&done));
    server.launch().await;

    let http = server.admin().await;
    let found = maps(&http).await;
    let before = found.iter().filter(|(name, _)| !name.contains("during"));
    assert_eq!(before.count(), 1200, "everything from before the backup is there");
    assert!(found["m-0001"].contains("before") && !found.contains_key("m-late"));
    let listed = listed_again(&mut watcher, &mut held).await;
    assert!(listed > last, "versions do not go back");
    assert!(held.contains_key("m-0000") && !held.contains_key("m-late"));
    let exact = format!("{MAPS}?resourceVersion={last}&resourceVersionMatch=Exact");
    let gone = http.get(&exact).await;
    assert_eq!(gone.code, 410, "the history of the lost writes is not readable");
    let next = http.post(MAPS, &config_map("m-next", "later")).await.expect(201);
    assert!(version_of(&next).parse::<u64>().unwrap() > last);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_is_backed_up_too_and_damaged_backups_are_refused() {
    let mut server = Server::start(&[BARE]).await;
    let http = server.admin().await;
    http.post(MAPS, &config_map("m-1", "kept")).await.expect(201);
    server.terminate().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("saved");
    succeeds(&apiserver(&["backup"], server.data_dir(), &file));
    let whole = std::fs::read(&file).unwrap();

    let fresh = home.path().join("fresh");
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    let mut later = whole.clone();
    later[17] = 9;
    for (bytes, words) in [
        (&whole[..whole.len() - 10], "cut off"),
        (&flipped[..], "damaged"),
        (&later[..], "format 9"),
        (b"something else", "not a backup"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        fails(&apiserver(&["restore"], &fresh, &file), words);
        assert!(!fresh.join("store/store.redb").exists(), "nothing is left behind");
    }
    std::fs::write(&file, &whole).unwrap();
    succeeds(&apiserver(&["restore"], &fresh, &file));
    let restored = Server::start_in(&fresh, &[BARE]).await;
    assert_eq!(maps(&restored.admin().await).await.len(), 1);
    fails(
        &apiserver(&["backup"], home.path(), &file),
        "etcdctl snapshot save",
    );
}

#[tokio::test]
async fn only_the_administrator_gets_a_backup() {
    let server = Server::start(&[BARE]).await;
    for role in ["controllers", "proxy"] {
        assert_eq!(server.role(role).await.get("/backup").await.code, 403, "{role}");
    }
    assert_eq!(server.with_token(None).await.get("/backup").await.code, 403);
}
