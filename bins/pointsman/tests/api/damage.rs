//! What an operator reads when the store's file is damaged.

use pointsman_harness::{Server, program};
use std::path::Path;
use std::process::Command;

/// Starts a server that cannot start, and returns what it said.
fn refused(data_dir: &Path) -> String {
    let output = Command::new(program())
        .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .env("RUST_BACKTRACE", "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        !text.contains("panicked") && !text.contains("backtrace"),
        "{text}"
    );
    text
}

#[tokio::test]
async fn a_damaged_store_is_named_with_what_to_do_and_no_backtrace() {
    let mut server = Server::start(&[]).await;
    server.terminate().await;
    let file = server.data_dir().join("store/store.redb");
    let sound = std::fs::read(&file).unwrap();
    let noise = |n: usize| ((n * 2_654_435_761) >> 7) as u8;
    let random: Vec<u8> = (0..sound.len()).map(noise).collect();
    let mut holed = sound.clone();
    for (n, byte) in holed.iter_mut().enumerate().skip(4096) {
        *byte = noise(n);
    }
    for (bytes, what) in [
        (&random[..], "random bytes"),
        (&holed[..], "random bytes after the header"),
        (&sound[..sound.len() / 3], "a part"),
        (b"", "nothing"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let text = refused(server.data_dir());
        for word in [&file.display().to_string(), "damaged", "restore", "empty store"] {
            assert!(text.contains(word), "{what}: {word} is not in {text}");
        }
    }
    std::fs::write(&file, sound).unwrap();
    server.launch().await;
}
